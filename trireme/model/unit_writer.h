// Which of the ranks writes a unit into a checkpoint.
#pragma once

namespace trireme {

inline int writer_of_unit(int unit, int ranks) {
  return unit % ranks;
}

}  // namespace trireme
