// fp32 masters beside values of another dtype, or the values themselves where those are fp32: shares of units
// that the optimizer steps, on the device or, where the optimizer is offloaded, on the host.
#pragma once

#include <memory>
#include <vector>

#include "trireme/shard/parameter_store.h"
#include "trireme/shard/unit_shares.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {

// The share of each unit that this rank steps: the whole where `sharded` is false.
std::vector<UnitShare> owned_shares(const std::vector<FlatUnit>& units, const Group& group, bool sharded);

// fp32 shares on the places that `settings.optimizer` says; null where the values serve as masters.
std::unique_ptr<UnitTensors> make_masters(const std::vector<UnitShare>& shares,
                                          const ParameterSettings& settings);

// What a step of `values` works on where nothing else serves as their masters: the values themselves, or beside a GPU
// whose optimizer is offloaded a copy on the host.
at::Tensor values_to_step(const at::Tensor& values, const ParameterSettings& settings);

// Shares of all ranks put together, where `sharded`; else the tensor itself. Collective.
at::Tensor gather_shares(Group& group, const at::Tensor& share, int64_t unit_elements, bool sharded,
                         at::Device device);

}  // namespace trireme
