// What `trireme bench comm` prints: tables for people, or one line of JSON.
#pragma once

#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/measure/fitted_link.h"

#include "bench/comm/exchange_rate.h"

namespace trireme {

// Sequence and ranks grow together: one size of the run.
struct WeakScalingRow {
  int ranks = 1;
  int64_t tokens = 0;               // S, of a sample
  bool measured = false;            // counted as well as computed
  std::vector<ExchangeBytes> sent;  // of the rank that sends most, for each method of the report
};

struct CommReport {
  int ranks = 1;
  bool threads = false;  // ranks are threads of one process
  ExchangeRateOptions options;
  FittedLink link;
  std::vector<ExchangeRate> methods;
  std::vector<WeakScalingRow> weak_scaling;
  std::vector<std::string> left_out;  // methods that these ranks do not have, and why
};

std::string text_of(const CommReport& report);
Json json_of(const CommReport& report);

}  // namespace trireme
