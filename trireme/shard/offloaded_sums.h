// A step's running sums of gradients in pinned memory of the host, one flat fp32 tensor a unit. They are added to on the
// device, which holds a unit's sum for that time alone, so that no thread of the host adds:
//
//   expect(u)    host -- copy stream --> device    where this step has a sum of the unit; while the unit's backward goes on
//   earlier(u)   the computation waits for it; the caller adds
//   put(u)       device -- copy stream --> host    while the backward of other units goes on
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/device/pinned_pool.h"
#include "trireme/memory/copy_stream.h"

namespace trireme {

// Used by one thread; on_host() of a unit by another too, until the first uses that unit again.
class OffloadedSums {
 public:
  OffloadedSums(const std::vector<int64_t>& elements, at::Device device, std::shared_ptr<CopyStream> copies,
                PinnedPool& pinned);
  ~OffloadedSums();

  // A step begins: no unit has a sum. Lets the last one's memory of the device go.
  void clear();
  void expect(int unit);
  // On the device, the caller's own; undefined where the step has none yet. After expect().
  at::Tensor earlier(int unit);
  // `sum` stays as it is; the device's memory of the one that was put before may be given out again.
  void put(int unit, const at::Tensor& sum);
  // The step is done: what was not put since clear is zero.
  void finish();
  // Whole, of the step that put it last; this thread waits for its copy.
  at::Tensor on_host(int unit);

 private:
  struct Sum {
    at::Tensor host;
    at::Tensor coming;  // on the device
    CopyStream::Mark copied;
    bool put = false;  // in this step
  };
  Sum& sum(int unit) { return sums_.at(static_cast<size_t>(unit)); }
  void let_leaving_go();

  at::Device device_;
  std::shared_ptr<CopyStream> copies_;
  std::vector<Sum> sums_;
  // On its way to the host.
  at::Tensor leaving_;
  CopyStream::Mark left_;
};

}  // namespace trireme
