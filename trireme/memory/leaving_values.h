// Values of a GPU on their way to the host, one tensor at a time: its memory stays until the computation has waited
// for the copy, before the next one leaves at the latest.
#pragma once

#include <memory>
#include <utility>

#include "trireme/memory/copy_stream.h"

namespace trireme {

// Used by one thread.
class LeavingValues {
 public:
  explicit LeavingValues(std::shared_ptr<CopyStream> copies) : copies_(std::move(copies)) {}

  // host = values, as the computation so far has made them. `host` must stay until the mark that is returned.
  CopyStream::Mark copy(const at::Tensor& host, const at::Tensor& values) {
    let_go();
    copies_->wait_for_compute();
    copies_->copy(host, values);
    values_ = values;
    return left_ = copies_->mark();
  }
  // The computation's later work may use the memory of the values that left last.
  void let_go() {
    copies_->compute_waits(std::exchange(left_, nullptr));
    values_ = at::Tensor();
  }

 private:
  std::shared_ptr<CopyStream> copies_;
  at::Tensor values_;
  CopyStream::Mark left_;  // after their copy
};

}  // namespace trireme
