#include "trireme/shard/master_share.h"

#include <algorithm>

#include "trireme/kernels/split_master.h"
#include "trireme/kernels/split_master_bytes.h"

namespace trireme {

MasterShare MasterShare::narrow(int64_t begin, int64_t elements) const {
  const auto of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.narrow(0, begin, elements) : tensor;
  };
  return {of(whole), of(low), of(values)};
}

at::Tensor MasterShare::fp32() const {
  if (!split()) return whole;
  at::Tensor joined = at::empty(values.sizes(), values.options().dtype(at::kFloat));
  join_masters(values, low, joined);
  return joined;
}

void MasterShare::set(const at::Tensor& from) const {
  const at::Device device = (split() ? low : whole).device();
  if (from.device() != device && from.numel() > kSplitPiece_elements) {
    for (int64_t begin = 0; begin < from.numel(); begin += kSplitPiece_elements) {
      const int64_t count = std::min(kSplitPiece_elements, from.numel() - begin);
      narrow(begin, count).set(from.narrow(0, begin, count));
    }
    return;
  }
  const at::Tensor here = from.to(device);
  if (!split()) {
    round_masters(here, whole);
    if (values.defined()) round_masters(here, values);
  } else if (here.scalar_type() == at::kBFloat16) {
    values.copy_(here);
    low.zero_();
  } else {
    split_masters(here.to(at::kFloat), values, low);
  }
}

}  // namespace trireme
