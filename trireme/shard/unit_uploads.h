// Uploads units' values from pinned host memory to a GPU while units before them compute, and brings stepped
// values back.
//
//   host [E] -- copy stream --> device [E]; the computation's stream or a collective waits for the copy
//   device [E] -- copy stream --> host [E]; uploads come behind it, the host waits before it reads
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/memory/copy_stream.h"
#include "trireme/memory/leaving_values.h"

namespace trireme {

// Used by one thread. Another thread that steps a unit may drop() it while no thread begins or finishes it.
class UnitUploads {
 public:
  UnitUploads(size_t units, at::Device device, std::shared_ptr<CopyStream> copies);
  ~UnitUploads();

  bool begun(int unit) const { return uploads_.at(static_cast<size_t>(unit)).values.defined(); }
  // `host` must not change until the returned mark is reached, or the upload is used or dropped.
  CopyStream::Mark begin(int unit, const at::Tensor& host);
  // Ends an upload: the values, complete for the work that the computation is given from now on.
  at::Tensor finish(int unit);
  // Ends an upload: `give` starts device work that reads the values. That work runs after their copy and
  // after the computation so far; the computation does not wait. The values live until that work is waited
  // for.
  void finish_beside(int unit, const std::function<void(const at::Tensor& values)>& give);
  // Call before the host reads or changes the unit's values there: waits for the copies on their way. An
  // upload begun and not finished is dropped, for it would be stale.
  void drop(int unit);
  // `host` becomes `values` of the device, as the computation so far has made them; drop() first. `host` must
  // stay until the unit is dropped again.
  void bring_back(int unit, const at::Tensor& host, const at::Tensor& values);

 private:
  struct Upload {
    at::Tensor values;  // none: not on its way
    CopyStream::Mark copied;
  };
  Upload take(int unit);

  at::Device device_;
  std::shared_ptr<CopyStream> copies_;
  std::vector<Upload> uploads_;
  std::vector<CopyStream::Mark> brought_;  // by unit
  LeavingValues leaving_;                  // what was brought back last
};

}  // namespace trireme
