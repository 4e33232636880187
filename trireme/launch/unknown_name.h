// How launchers wait for the name of machine 0, which a cluster's name server may learn a little later.
#pragma once

#include <algorithm>

#include "trireme/base/resolved_address.h"
#include "trireme/launch/launch.h"

namespace trireme {

// Between two looks.
constexpr double kNamePause_seconds = 0.2;

// After which an unknown name is an error.
inline double time_for_a_name_seconds(const LaunchOptions& options) {
  return std::min<double>(kTimeForAName.count(), options.join_seconds);
}

}  // namespace trireme
