// Repeated measurements in three numbers.
#pragma once

#include <algorithm>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

struct Spread {
  double median = 0;  // of an even number: the mean of the two in the middle
  double least = 0;
  double most = 0;
};

// `values` must not be empty.
inline Spread spread_of(std::vector<double> values) {
  TRIREME_ASSERT(!values.empty(), "the spread of nothing");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(),
          values.back()};
}

}  // namespace trireme
