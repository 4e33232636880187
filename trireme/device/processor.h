// Capabilities of the processor.
#pragma once

#include <string>

namespace trireme {

// True if the processor has bf16 matmul instructions that are faster than fp32's: AMX, or an AMD's AVX512-BF16.
bool cpu_has_bf16_matmul();
// True if it has AVX-512 with an instruction that rounds fp32 to bf16.
bool cpu_rounds_to_bf16();
std::string cpu_model_name();

}  // namespace trireme
