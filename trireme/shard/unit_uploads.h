// Units' values on their way from pinned memory of the host to a GPU: each travels while the unit before it computes.
//
//   host [E] -- copy stream --> device [E], which the computation's stream waits for
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/memory/copy_stream.h"

namespace trireme {

// Used by one thread; drop() by another that steps the unit meanwhile, as long as no one begins or finishes that unit.
class UnitUploads {
 public:
  UnitUploads(size_t units, at::Device device, std::unique_ptr<CopyStream> copies);
  ~UnitUploads();

  // `host` stays as it is until what was begun is finished and used, or dropped. Nothing to do when the unit is on its
  // way already.
  void begin(int unit, const at::Tensor& host);
  // The values, whole for the work that the computation is given from here on; begins first where that was not done.
  at::Tensor finish(int unit, const at::Tensor& host);
  // Before `host` changes: what was begun and not finished would be stale. Waits for its copy.
  void drop(int unit);

 private:
  struct Upload {
    at::Tensor values;  // none: not on its way
    CopyStream::Mark copied;
  };
  at::Device device_;
  std::unique_ptr<CopyStream> copies_;
  std::vector<Upload> uploads_;
};

}  // namespace trireme
