#include "trireme/measure/spread.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

Spread spread_of(std::vector<double> values) {
  TRIREME_ASSERT(!values.empty(), "the spread of nothing");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(),
          values.back()};
}

}  // namespace trireme
