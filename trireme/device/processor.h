// Capabilities of the processor.
#pragma once

#include <string>

namespace trireme {

// True if the processor has bf16 matmul instructions (AMX, AVX512-BF16), so that bf16 operands are the fast
// ones.
bool cpu_has_bf16_matmul();
// True if it has AVX-512 with an instruction that rounds fp32 to bf16.
bool cpu_rounds_to_bf16();
std::string cpu_model_name();

}  // namespace trireme
