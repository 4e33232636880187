// What a sum holds before something is added to it. Memory of gradients is not zeroed for a step: the first
// product of a weight is written over it.
#pragma once

namespace trireme {

enum class SumState {
  undefined,  // nothing of this sum: the values may be anything, and are not read
  begun,      // what was added so far
};

}  // namespace trireme
