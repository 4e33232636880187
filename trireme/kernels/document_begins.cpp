#include "trireme/kernels/document_begins.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

at::Tensor document_begins(const std::vector<Documents>& documents) {
  if (documents.empty()) return {};
  const int64_t tokens = documents.front().tokens();
  at::Tensor begins_BS = at::empty({static_cast<int64_t>(documents.size()), tokens}, at::kInt);
  auto* begins = begins_BS.mutable_data_ptr<int32_t>();
  for (const Documents& of_sample : documents) {
    TRIREME_ASSERT(of_sample.tokens() == tokens, "documents of ", of_sample.tokens(), " tokens beside ",
                   tokens);
    const std::vector<int64_t>& borders = of_sample.cu_seqlens();
    for (size_t i = 0; i + 1 < borders.size(); ++i)
      std::fill(begins + borders[i], begins + borders[i + 1], static_cast<int32_t>(borders[i]));
    begins += tokens;
  }
  return begins_BS;
}

}  // namespace trireme
