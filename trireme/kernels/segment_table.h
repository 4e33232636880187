// Where the segments of a call lie in its rows, for kernels that are told first rows and counts, not
// cu_seqlens. Segments without rows or without keys are left out: their rows lie in gaps, which such a kernel
// does not write.
#pragma once

#include <cstdint>
#include <map>

#include <ATen/ATen.h>

#include "trireme/kernels/attention_graph.h"

namespace trireme {

class SegmentTable {
 public:
  SegmentTable(const MaskCall& call, at::Device device);

  int64_t segments() const { return segments_; }
  int64_t longest_q() const { return longest_q_; }
  int64_t longest_k() const { return longest_k_; }
  int64_t all_rows() const { return all_rows_; }
  int64_t all_keys() const { return all_keys_; }
  // Every row, or key, of the call is in a segment.
  bool covers_rows() const { return covers_rows_; }
  bool covers_keys() const { return covers_keys_; }

  // Of a graph, on the device: int32 [segments of the graph].
  const at::Tensor& rows_of_segments() const { return rows_; }
  const at::Tensor& keys_of_segments() const { return keys_; }
  // int64 [segments of the graph + 1], computed once.
  const at::Tensor& offsets(const SegmentOffsets& wanted);

 private:
  int64_t segments_ = 0, longest_q_ = 0, longest_k_ = 0, all_rows_ = 0, all_keys_ = 0;
  bool covers_rows_ = true, covers_keys_ = true;
  at::Tensor rows_, keys_, first_rows_, first_keys_;
  std::map<SegmentOffsets, at::Tensor> offsets_;
};

}  // namespace trireme
