// `trireme verify`: this program's numbers beside a reference's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/engine_flags.h"

namespace trireme {

struct VerifyFlags {
  std::string model, precision = "fp32";
  std::filesystem::path reference;
  double tolerance = 1e-4;
  int64_t ranks_as_threads = 0, rows = 8;
  bool json = false;
  EngineFlags engine;

  void declare(OptionParser& parser);
  // After parse; the degrees need the world. Throws ConfigError.
  EngineOptions resolve(const OptionParser& parser, const RankPlace& place) const;
};

// 0: every tensor is within the tolerance; 1: one is not.
int run_verify(const std::vector<std::string>& arguments);

}  // namespace trireme
