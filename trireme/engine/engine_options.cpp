// Names of the choices, as flags write them and logs show them.
#include "trireme/engine/engine_options.h"

#include "trireme/base/error.h"

namespace trireme {

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
    case Precision::fp16:
      return "fp16";
  }
  throw InternalError("unknown precision");
}

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp32";
}

Recompute parse_recompute(const std::string& text) {
  for (const Recompute recompute :
       {Recompute::automatic, Recompute::full, Recompute::keep_attention, Recompute::none})
    if (text == name_of(recompute)) return recompute;
  throw ConfigError(cat("--recompute: '", text, "' is unknown; expected auto, full, keep_attention or none"));
}

Offload parse_offload(const std::string& flag, const std::string& text) {
  for (const Offload place : {Offload::none, Offload::cpu, Offload::disk})
    if (text == name_of(place)) return place;
  throw ConfigError(cat("--", flag, ": '", text, "' is unknown; expected none, cpu or disk"));
}

Precision parse_precision(const std::string& text) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16})
    if (text == name_of(precision)) return precision;
  throw ConfigError(cat("--precision: '", text, "' is unknown; expected fp32, bf16 or fp16"));
}

}  // namespace trireme
