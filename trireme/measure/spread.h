// Repeated measurements in three numbers.
#pragma once

#include <vector>

namespace trireme {

struct Spread {
  double median = 0;  // of an even number: the mean of the two in the middle
  double least = 0;
  double most = 0;
};

// `values` must not be empty.
Spread spread_of(std::vector<double> values);

}  // namespace trireme
