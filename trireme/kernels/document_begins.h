// Where documents begin, as kernels read it that part them by masks: on their device, made once a batch.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/documents.h"

namespace trireme {

// Documents of each sample -> [B, S] int32 on the host: the token of its sample at which a token's document
// begins. Without documents undefined, which says the same as 0 of all.
at::Tensor document_begins(const std::vector<Documents>& documents);

}  // namespace trireme
