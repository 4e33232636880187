// What a rank is expected to take, beside what it may plan with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace trireme {

struct MemoryFit {
  int64_t expected_bytes = 0;  // memory_forecast's total
  int64_t budget_bytes = 0;
  // The same of the host's memory beside a GPU, which what is offloaded fills.
  int64_t expected_host_bytes = 0;
  int64_t host_budget_bytes = kNoLimit;

  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  bool fits_host() const { return expected_host_bytes <= host_budget_bytes; }
  bool fits() const { return expected_bytes <= budget_bytes && fits_host(); }
  // What is taken of the budget, of the fuller one of both memories; above 1 where it does not fit.
  double fullness() const {
    const auto share = [](int64_t expected, int64_t budget) {
      return static_cast<double>(expected) / static_cast<double>(std::max<int64_t>(1, budget));
    };
    return std::max(share(expected_bytes, budget_bytes), share(expected_host_bytes, host_budget_bytes));
  }
  // Of both memories together.
  int64_t bytes_over() const {
    return std::max<int64_t>(0, expected_bytes - budget_bytes) +
           std::max<int64_t>(0, expected_host_bytes - host_budget_bytes);
  }
};

}  // namespace trireme
