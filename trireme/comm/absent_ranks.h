// A c10d backend of rank 0 in a group whose other ranks are absent: what they would send is made here, by
// copies of as many bytes of what this rank sends. The backend answers at once, every output is written
// whole, and only with values that this rank holds, so what follows computes with finite numbers. Sums take
// this rank's part for every rank's.
//
//   all-to-all       from rank p: what this rank sends to p; else its whole input, as often as it goes in
//   all-gather       of each rank this rank's rows, as often as they go in
//   broadcast        from rank 0: nothing; from others: what rank 0 broadcast into the same storage before,
//                    which is how uneven rows are gathered; else zeros
//   reduce-scatter   NCCL: the sum of the input's P blocks; post board: P times this rank's block; Gloo: none
//   all-reduce       NCCL alone: P times the input, which is passed over once
#pragma once

#include <cstdint>
#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/comm/backend_library.h"
#include "trireme/comm/call_time.h"

namespace trireme {

// What absent ranks were made of so far, by all groups of a rank.
struct StandIns {
  int64_t received_bytes = 0;  // in place of the others'
  CallSeconds seconds;         // of the copies, on a device of its stream
};

// `library`: whose place the backend takes, of those that are known. Ranks of a post board add up as they
// read each other's memory, NCCL adds up itself; Gloo leaves it to comm/collectives.cpp, which needs memory
// for it.
c10::intrusive_ptr<c10d::Backend> make_absent_ranks_backend(std::shared_ptr<StandIns> stand_ins, int ranks,
                                                            BackendLibrary library);

}  // namespace trireme
