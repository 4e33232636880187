// In which number format a run keeps its values and multiplies its tiles. No torch here.
#pragma once

#include <cstdint>

#include "trireme/base/enum_names.h"

namespace trireme {

enum class Precision { fp32, bf16, fp16 };
constexpr auto enum_names(Precision) {
  using enum Precision;
  return std::to_array<EnumName<Precision>>({{fp32, "fp32"}, {bf16, "bf16"}, {fp16, "fp16"}});
}
// How bf16 matmuls run on a CPU: in its own bf16 instructions, or, where it has none, in fp32 on bf16 values.
enum class Bf16Matmul { automatic, native, fp32 };

// Bytes of a value between tiles.
constexpr int64_t storage_bytes_of(Precision precision) {
  return precision == Precision::fp32 ? 4 : 2;
}

// Whether tiles are multiplied in the 16 bits of the values; else in fp32. `bf16_products`: the processor has
// instructions for them.
constexpr bool multiplies_16_bit(Precision precision, Bf16Matmul matmul, bool on_gpu, bool bf16_products) {
  // Processors multiply fp16 values slowly or not at all; their products are made in fp32.
  if (precision != Precision::bf16) return precision == Precision::fp16 && on_gpu;
  if (matmul != Bf16Matmul::automatic) return matmul == Bf16Matmul::native;
  return on_gpu || bf16_products;
}

}  // namespace trireme
