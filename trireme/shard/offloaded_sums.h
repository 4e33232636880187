// A step's running sums of gradients in pinned host memory, one flat fp32 tensor a unit. The device adds to a
// sum and holds it only meanwhile. So no thread of the host adds:
//
//   expect(u)    host -- copy stream --> device    where this step has a sum of u; while u's backward runs
//   earlier(u)   the computation waits for that copy; the caller adds
//   put(u)       device -- copy stream --> host    while the backward of other units runs
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/device/pinned_pool.h"
#include "trireme/memory/copy_stream.h"
#include "trireme/memory/leaving_values.h"

namespace trireme {

// Used by one thread. Another thread may call on_host(u) until the first thread uses u again.
class OffloadedSums {
 public:
  OffloadedSums(const std::vector<int64_t>& elements, at::Device device, std::shared_ptr<CopyStream> copies,
                PinnedPool& pinned);
  ~OffloadedSums();

  // Begins a step: no unit has a sum. Releases the device memory of the last sum put.
  void clear();
  void expect(int unit);
  // The step's sum so far, on the device, owned by the caller; undefined if there is none. After expect().
  at::Tensor earlier(int unit);
  // `sum` must not change afterwards. The device memory of the sum put before may be reused.
  void put(int unit, const at::Tensor& sum);
  // Ends the step: sums not put since clear() become zero.
  void finish();
  // The complete sum of the step that put it last. This thread waits for its copy.
  at::Tensor on_host(int unit);

 private:
  struct Sum {
    at::Tensor host;
    at::Tensor coming;  // on the device
    CopyStream::Mark copied;
    bool put = false;  // in this step
  };
  Sum& sum(int unit) { return sums_.at(static_cast<size_t>(unit)); }

  at::Device device_;
  std::shared_ptr<CopyStream> copies_;
  std::vector<Sum> sums_;
  LeavingValues leaving_;  // the last sum put
};

}  // namespace trireme
