// Masks and documents of a test's case, as the oracle and as the kernels take them.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/documents.h"
#include "trireme/base/token_span.h"
#include "trireme/kernels/mask.h"

#include "tests/kernels/attention_oracle.h"

namespace trireme_test {

// Of each token of a sample the number of its document.
std::vector<std::vector<int64_t>> document_of_token(const std::vector<std::vector<int64_t>>& cu_seqlens);
OracleMask oracle_mask(const trireme::LayerMask& mask, const std::vector<std::vector<int64_t>>& cu_seqlens);
std::vector<trireme::Documents> documents_from(const std::vector<std::vector<int64_t>>& cu_seqlens);
// Token numbers, as an index.
at::Tensor tokens_of(const trireme::TokenSpans& spans);

}  // namespace trireme_test
