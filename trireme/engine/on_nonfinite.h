// What becomes of a step whose loss or gradient norm is not finite.
#pragma once

#include "trireme/base/enum_names.h"

namespace trireme {

enum class OnNonfinite {
  stop,  // a DataError that names the tensor
  skip,  // nothing is updated; where a weight is not finite no step can be better, and the step stops
};
constexpr auto enum_names(OnNonfinite) {
  using enum OnNonfinite;
  return std::to_array<EnumName<OnNonfinite>>({{stop, "stop"}, {skip, "skip"}});
}

}  // namespace trireme
