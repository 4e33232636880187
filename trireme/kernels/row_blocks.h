// How many rows the ATen kernels of token_ops_aten.cpp work on at a time. Arithmetic alone, for byte formulas
// too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Of a tensor between two kernels: 32 MiB in fp32, enough for a GPU to be busy.
constexpr int64_t kRowBlock_elements = int64_t{1} << 23;

constexpr int64_t rows_of_block(int64_t row_elements) {
  return std::max<int64_t>(1, kRowBlock_elements / std::max<int64_t>(1, row_elements));
}

}  // namespace trireme
