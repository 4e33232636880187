// fp32 masters: separate tensors beside values of another dtype, or the values themselves where those are
// fp32. They are the shares that the optimizer steps, on the device or, where it is offloaded, on the host.
#pragma once

#include <memory>
#include <vector>

#include "trireme/shard/parameter_store.h"
#include "trireme/shard/unit_shares.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {

// The share of each unit that this rank steps; the whole unit where `sharded` is false.
std::vector<UnitShare> owned_shares(const std::vector<FlatUnit>& units, const Group& group, bool sharded);

// fp32 shares, located as `settings.optimizer` says; null where the values serve as masters.
std::unique_ptr<UnitTensors> make_masters(const std::vector<UnitShare>& shares,
                                          const ParameterSettings& settings);

// The tensor to step where `values` have no separate masters: the values themselves, or a copy if the
// optimizer steps elsewhere (such as on the host of a GPU).
at::Tensor values_to_step(const at::Tensor& values, const ParameterSettings& settings);

// Where `sharded`, joins the shares of all ranks; else returns `share`. Collective.
at::Tensor gather_shares(Group& group, const at::Tensor& share, int64_t unit_elements, bool sharded,
                         at::Device device);

}  // namespace trireme
