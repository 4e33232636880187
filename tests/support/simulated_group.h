// A group of ranks that all hold what this one holds, whose gathers and trades are work of simulated streams:
// a backend as NCCL's, whose collectives come behind the stream that they are given on, and which the stream
// that waits comes behind.
#pragma once

#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/comm/group.h"
#include "trireme/comm/owned_backend.h"

#include "tests/support/simulated_streams.h"

namespace trireme::testing {

class SimulatedBackend final : public c10d::Backend {
 public:
  SimulatedBackend(SimulatedStreams& streams, int ranks) : Backend(0, ranks), streams_(streams) {}
  const std::string getBackendName() const override { return "simulated"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    const auto done = streams_.communicate([to = output.mutable_data_ptr<uint8_t>(), ranks = getSize(),
                                            from = input.const_data_ptr(), bytes = input.nbytes()] {
      for (int rank = 0; rank < ranks; ++rank) std::memcpy(to + rank * bytes, from, bytes);
    });
    return c10::make_intrusive<Exchange>(streams_, done);
  }

  // Of equal blocks.
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& /*output_sizes*/,
                                               std::vector<int64_t>& /*input_sizes*/,
                                               const c10d::AllToAllOptions& /*options*/) override {
    const auto done = streams_.communicate([to = output.mutable_data_ptr(), from = input.const_data_ptr(),
                                            bytes = input.nbytes()] { std::memcpy(to, from, bytes); });
    return c10::make_intrusive<Exchange>(streams_, done);
  }

 private:
  class Exchange final : public c10d::Work {
   public:
    Exchange(SimulatedStreams& streams, std::shared_ptr<const StreamMark> done)
        : streams_(streams), done_(std::move(done)) {}
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      streams_.wait_here(done_);
      return true;
    }

   private:
    SimulatedStreams& streams_;
    std::shared_ptr<const StreamMark> done_;
  };
  SimulatedStreams& streams_;
};

// This is the first rank. Outlived by `streams`. One rank: a group alone.
inline Group simulated_group(SimulatedStreams& streams, int ranks) {
  if (ranks == 1) return {"simulated", nullptr, {0}, 0, std::chrono::milliseconds(0)};
  std::vector<int> world(static_cast<size_t>(ranks));
  std::iota(world.begin(), world.end(), 0);
  return {"simulated", own_backend(c10::make_intrusive<SimulatedBackend>(streams, ranks)), world, 0,
          std::chrono::minutes(1)};
}

}  // namespace trireme::testing
