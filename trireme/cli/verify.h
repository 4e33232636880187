// `trireme verify`: this program's numbers beside a reference's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/cli/process_options.h"

namespace trireme {

struct VerifyFlags {
  std::string model;
  std::filesystem::path reference;
  std::optional<double> tolerance;  // none: by the precision
  std::optional<int64_t> ranks_as_threads;
  int64_t rows = 8;
  bool json = false;
  EngineOptions engine;
  ProcessOptions process;

  void declare(OptionList& list);
  // After parse; the degrees need the world. Throws ConfigError.
  EngineOptions resolve(const RankIdentity& identity) const;
};

// 0: every tensor is within the tolerance; 1: one is not.
int run_verify(const std::vector<std::string>& arguments);

}  // namespace trireme
