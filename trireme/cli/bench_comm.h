// trireme bench comm: what the exchanges of one layer send and take, method by method, beside their formulas;
// alone, under a launcher, or with --ranks_as_threads. Measurement itself is trireme/measure/exchange_rate.h.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_bench_comm(const std::vector<std::string>& arguments);

}  // namespace trireme
