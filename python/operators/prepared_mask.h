// What calls of attention with the same arguments share: the mask, and the local kernel, which on a GPU has
// cut the mask into calls and copied their cu_seqlens there. All layers of a step ask for the same, forward,
// backward and computed again; made anew by each of them, the host would wait for two copies a call.
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/attention/sequence_attention.h"
#include "trireme/base/documents.h"

namespace trireme {

struct MaskArguments {
  at::Device device;
  c10::StreamId stream;  // on which the kernel's copies are made and read (stream_of)
  at::ScalarType dtype;
  SampleLayout layout;
  int ring_index;  // of this rank
  LayerMask mask;
  std::vector<Documents> documents;  // of each sample; empty: one a sample
  Scores scores = Scores::plain;

  bool operator==(const MaskArguments&) const = default;
};

// The device's current stream; 0 on the CPU.
c10::StreamId stream_of(at::Device device);

struct PreparedMask {
  MaskArguments arguments;
  SequenceMask mask;
  std::unique_ptr<LocalAttention> local;
};

// The masks that a process keeps for its next calls: the last few.
inline constexpr size_t kMostPreparedMasks = 4;

// One of them while it is used, by one thread; made where none is kept. The destructor gives it back. Of a
// CPU's local kernel nothing is kept: it has cut nothing, and holds the memory that it works in.
class BorrowedMask {
 public:
  // Throws ConfigError: documents that do not end with the sample, a kernel that is not there.
  explicit BorrowedMask(MaskArguments arguments);
  ~BorrowedMask();
  BorrowedMask& operator=(BorrowedMask&&) = delete;

  const SequenceMask& mask() const { return prepared_.mask; }
  LocalAttention& local() { return *prepared_.local; }

 private:
  PreparedMask prepared_;
};

}  // namespace trireme
