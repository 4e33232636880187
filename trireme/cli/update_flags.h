// The flags of commands that train: precision, optimizer state, how gradients are summed, when weights are updated.
#pragma once

#include <string>

#include "trireme/cli/option_parser.h"
#include "trireme/engine/engine_options.h"

namespace trireme {

struct UpdateFlags {
  bool bf16 = false;
  bool fp16 = false;
  std::string optim = "adamw_torch";
  std::string optim_state_dtype = "fp32";
  std::string reduce_dtype = "fp32";
  std::string offload_optimizer = "none";
  bool update_in_backward = false;

  void declare(OptionParser& parser);
  // Throws ConfigError where two of them contradict each other.
  void check() const;
  void apply(EngineOptions& options) const;
  const char* dtype() const { return bf16 ? "bf16" : fp16 ? "fp16" : "fp32"; }
};

}  // namespace trireme
