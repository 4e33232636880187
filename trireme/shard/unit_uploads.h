// Units' values on their way from pinned memory of the host to a GPU: each travels while units before it compute.
//
//   host [E] -- copy stream --> device [E], which the computation's stream waits for, or a collective does
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/memory/copy_stream.h"

namespace trireme {

// Used by one thread; drop() by another that steps the unit meanwhile, as long as no one begins or finishes that unit.
class UnitUploads {
 public:
  UnitUploads(size_t units, at::Device device, std::shared_ptr<CopyStream> copies);
  ~UnitUploads();

  bool begun(int unit) const { return uploads_.at(static_cast<size_t>(unit)).values.defined(); }
  // `host` stays as it is until the result, the end of its copy, or until what was begun is finished and used, or dropped.
  CopyStream::Mark begin(int unit, const at::Tensor& host);
  // What was begun: the values, whole for the work that the computation is given from here on.
  at::Tensor finish(int unit);
  // What was begun: `give` gives the device work that reads the values. It comes behind their copy and what the
  // computation was given so far; the computation does not wait. The values stay until `give`'s work is waited for.
  void finish_beside(int unit, const std::function<void(const at::Tensor& values)>& give);
  // Before `host` changes: what was begun and not finished would be stale. Waits for its copy.
  void drop(int unit);

 private:
  struct Upload {
    at::Tensor values;  // none: not on its way
    CopyStream::Mark copied;
  };
  Upload take(int unit);

  at::Device device_;
  std::shared_ptr<CopyStream> copies_;
  std::vector<Upload> uploads_;
};

}  // namespace trireme
