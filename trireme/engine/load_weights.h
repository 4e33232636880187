// From a model's files into the parameter store. The ranks of a run share the work, so that every byte is
// read once by all of them together:
//
//   masters sharded    each rank reads its share of every unit                    -> its masters
//   masters whole      each rank reads 1/ranks of every piece; all-gather          -> its masters
//
// Pieces are ranges of one parameter. A thread reads them ahead (base/read_ahead.h) in the file's dtype, in
// which they are also exchanged and travel to a GPU; looking for values that are not finite and converting is
// one pass with all threads where masters are fp32 alone. Beside the store, memory is that of a few pieces,
// whatever the model's size.
#pragma once

#include "trireme/comm/group.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/shard/parameter_store.h"

namespace trireme {

struct WeightLoading {
  Group& all;           // every rank of the run
  at::Device device;    // of the run
  PinnedPool* buffers;  // from which the memory for reading comes, beside a GPU; null: pageable memory
  // Of this rank, of one piece; with whole masters, the pieces of at most 8 ranks are gathered at once.
  int64_t piece_bytes = int64_t{8} << 20;
};

// Sets the masters of all units, and with them the values that compute reads. The store must be fresh: padding
// is not written. Collective. Throws the DataError of the first rank that has one (values that are not finite
// or not tied, a file that was cut), in the same words on every rank; a tensor that is missing or misshapen is
// told before anything is read.
void load_weights(const CheckpointReader& reader, const ModelLayout& layout, ParameterStore& parameters,
                  const WeightLoading& loading);

}  // namespace trireme
