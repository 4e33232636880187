// The calls of libtorch's CUDA attention operators that this process made on the CPU, where they are played
// (flash_operators.cpp, cudnn_operators.cpp, efficient_operators.cpp). With TRIREME_OPERATOR_CALLS in the
// environment every distinct one is written to that file, a JSON object a line, for
// tests/python/test_cuda_operator_calls.py:
//
//   {"operator": NAME, "arguments": {NAME: VALUE, ...}, "returns": [VALUE, ...]}
//
// in the order of the operator's schema. A tensor is {"sizes": [...], "strides": [...], "dtype": NAME}, what
// is not given null.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

namespace trireme_test {

using OperatorArguments = std::vector<std::pair<const char*, c10::IValue>>;

void note_call(const std::string& name, const OperatorArguments& arguments,
               const std::vector<c10::IValue>& returns);

// Of one operator since the process began.
int64_t calls_of(const std::string& name);

// The distinct sizes of the queries that calls of one operator had.
std::set<std::vector<int64_t>> query_sizes_of(const std::string& name);

// The tensors of int32 that calls were given as cu_seqlens, by address; they are kept, so that none comes
// again.
int64_t distinct_segments();

}  // namespace trireme_test
