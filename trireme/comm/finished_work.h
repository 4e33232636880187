// The Work of a collective that was done when its call returned.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace trireme {

class FinishedWork : public c10d::Work {
 public:
  FinishedWork() { finish(); }
};

}  // namespace trireme
