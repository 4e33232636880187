// The values of a tensor of a safetensors file, as they lie there.
#pragma once

#include <string>

#include "trireme/base/safetensors.h"

namespace trireme::testing {

inline std::string bytes_of(const SafetensorsEntry& entry) {
  std::string bytes(static_cast<size_t>(entry.bytes), '\0');
  entry.read(0, bytes.data(), entry.bytes);
  return bytes;
}

}  // namespace trireme::testing
