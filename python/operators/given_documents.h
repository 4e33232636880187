// The documents that an operator was given: cu_seqlens of each sample, whole numbers on any device.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/documents.h"

namespace trireme {

// Throws DataError: cu_seqlens that are none.
inline std::vector<Documents> given_documents(const std::vector<at::Tensor>& cu_seqlens) {
  std::vector<Documents> documents;
  documents.reserve(cu_seqlens.size());
  for (const at::Tensor& tensor : cu_seqlens) {
    const at::Tensor host = tensor.to(at::kCPU, at::kLong).contiguous();
    const int64_t* const data = host.const_data_ptr<int64_t>();
    documents.emplace_back(std::vector<int64_t>(data, data + host.numel()));
  }
  return documents;
}

}  // namespace trireme
