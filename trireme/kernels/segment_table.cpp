#include "trireme/kernels/segment_table.h"

#include <algorithm>
#include <vector>

namespace trireme {

namespace {

// Rows and keys of each segment of a call, dense ones of each sample.
struct SegmentBorders {
  std::vector<int64_t> q, k;

  explicit SegmentBorders(const MaskCall& call) {
    if (!call.dense()) {
      q.assign(call.cu_q.begin(), call.cu_q.end());
      k.assign(call.cu_k.begin(), call.cu_k.end());
      return;
    }
    for (int64_t sample = 0; sample <= call.sample_end - call.sample; ++sample) {
      q.push_back(sample * call.rows());
      k.push_back(sample * call.keys());
    }
  }
};

at::Tensor on_device(const std::vector<int64_t>& values, at::ScalarType dtype, at::Device device) {
  return at::tensor(values, at::kLong).to(dtype).to(device);
}

}  // namespace

SegmentTable::SegmentTable(const MaskCall& call, at::Device device) {
  const SegmentBorders borders(call);
  all_rows_ = borders.q.back();
  all_keys_ = borders.k.back();
  std::vector<int64_t> rows, keys, first_rows, first_keys;
  for (size_t i = 0; i + 1 < borders.q.size(); ++i) {
    const int64_t rows_here = borders.q[i + 1] - borders.q[i], keys_here = borders.k[i + 1] - borders.k[i];
    if (rows_here == 0 || keys_here == 0) {
      covers_rows_ &= rows_here == 0;
      covers_keys_ &= keys_here == 0;
      continue;
    }
    rows.push_back(rows_here);
    keys.push_back(keys_here);
    first_rows.push_back(borders.q[i]);
    first_keys.push_back(borders.k[i]);
    longest_q_ = std::max(longest_q_, rows_here);
    longest_k_ = std::max(longest_k_, keys_here);
  }
  segments_ = static_cast<int64_t>(rows.size());
  if (segments_ == 0) return;
  const auto count = static_cast<size_t>(segments_of_graph(segments_));
  rows.resize(count, 0);
  keys.resize(count, 0);
  first_rows.resize(count + 1, all_rows_);
  first_keys.resize(count + 1, all_keys_);
  rows_ = on_device(rows, at::kInt, device);
  keys_ = on_device(keys, at::kInt, device);
  first_rows_ = on_device(first_rows, at::kLong, device);
  first_keys_ = on_device(first_keys, at::kLong, device);
}

const at::Tensor& SegmentTable::offsets(const SegmentOffsets& wanted) {
  at::Tensor& known = offsets_[wanted];
  if (!known.defined())
    known = (wanted.rows == GraphRows::queries ? first_rows_ : first_keys_) * wanted.elements_of_row;
  return known;
}

}  // namespace trireme
