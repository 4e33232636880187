#include "trireme/memory/saved_spans.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// A span begins at the alignment that kernels expect: equal alignment gives bitwise equal results.
constexpr int64_t kAlignment = 64;

struct Extent {
  at::Tensor of;  // one of the tensors over this storage
  int64_t begin = 0;
  int64_t end = 0;  // bytes in the storage
};

Extent extent_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return {tensor, 0, 0};
  const int64_t begin = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return {tensor, begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

}  // namespace

SavedSpans split_saved(const Saved& saved) {
  SavedSpans result;
  std::vector<Extent> extents;
  for (const at::Tensor& tensor : saved) {
    SavedLayout::View view;
    if (tensor.defined()) {
      TRIREME_ASSERT(tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg(),
                     "saved tensors have plain memory");
      const Extent extent = extent_of(tensor);
      const auto same = std::find_if(extents.begin(), extents.end(), [&](const Extent& other) {
        return tensor.numel() > 0 && other.of.numel() > 0 && other.of.is_alias_of(tensor);
      });
      view = {true,
              static_cast<size_t>(same - extents.begin()),
              extent.begin,
              tensor.scalar_type(),
              tensor.sizes().vec(),
              tensor.strides().vec()};
      if (same == extents.end()) {
        extents.push_back(extent);
      } else {
        same->begin = std::min(same->begin, extent.begin);
        same->end = std::max(same->end, extent.end);
      }
    }
    result.layout.views_.push_back(std::move(view));
  }
  for (Extent& extent : extents) {
    extent.begin = extent.begin / kAlignment * kAlignment;
    const int64_t bytes = extent.end - extent.begin;
    result.spans.push_back(at::empty({0}, extent.of.options().dtype(at::kByte))
                               .set_(extent.of.storage(), extent.begin, {bytes}, {1}));
    result.layout.bytes_ += bytes;
  }
  for (SavedLayout::View& view : result.layout.views_)
    if (view.defined) view.first_byte -= extents[view.span].begin;
  return result;
}

Saved SavedLayout::tensors(const std::vector<at::Tensor>& spans) const {
  Saved saved;
  saved.reserve(views_.size());
  for (const View& view : views_) {
    if (!view.defined) {
      saved.emplace_back();
      continue;
    }
    const at::Tensor& span = spans.at(view.span);
    const int64_t first = span.storage_offset() + view.first_byte;
    saved.push_back(at::empty({0}, span.options().dtype(view.dtype))
                        .set_(span.storage(), first / static_cast<int64_t>(c10::elementSize(view.dtype)),
                              view.sizes, view.strides));
  }
  return saved;
}

}  // namespace trireme
