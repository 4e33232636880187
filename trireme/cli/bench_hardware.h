// `trireme bench hardware`: this machine's HardwareProfile, for the planner.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/process_options.h"
#include "trireme/measure/hardware_rates.h"

namespace trireme {

struct BenchHardwareFlags {
  HardwareRateOptions measure;
  std::filesystem::path out;
  bool json = false;
  ProcessOptions process;  // --device, --threads, --ddp_timeout

  void declare(OptionList& list);
};

int run_bench_hardware(const std::vector<std::string>& arguments);

}  // namespace trireme
