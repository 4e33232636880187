// Where the shares that the optimizer steps are stored: as low bits beside bf16 values offloaded alike, as
// fp32 tensors beside other values of 16 bits, or as the values themselves where those are fp32
// (master_share.h). They lie on the device or, where the optimizer is offloaded, on the host.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "trireme/shard/master_share.h"
#include "trireme/shard/parameter_store.h"
#include "trireme/shard/unit_shares.h"
#include "trireme/shard/unit_tensors.h"

namespace trireme {

// The share of each unit that this rank steps; the whole unit where `sharded` is false.
std::vector<UnitShare> owned_shares(const std::vector<FlatUnit>& units, const Group& group, bool sharded);

// Low bits or fp32 shares, located as `settings.optimizer` says; null where the values serve as masters.
std::unique_ptr<UnitTensors> make_masters(const std::vector<UnitShare>& shares,
                                          const ParameterSettings& settings);

// Whether they are low bits.
bool splits_masters(const ParameterSettings& settings);

// `stored`: of make_masters, open; undefined where the values serve as masters. Where the optimizer steps on
// another device than the one of `values` (the host of a GPU, or the GPU itself), `whole` or `values` of the
// result is memory beside them, and the caller copies.
MasterShare open_share(const at::Tensor& values, const at::Tensor& stored, const ParameterSettings& settings);

// Joins on `device` what each rank has of a flat tensor, `of_ranks` elements each. Collective.
at::Tensor gather_parts(Group& group, const at::Tensor& part, std::span<const int64_t> of_ranks,
                        at::Device device);
// The same of equal shares; where not `sharded`, returns `share`.
at::Tensor gather_shares(Group& group, const at::Tensor& share, bool sharded, at::Device device);

}  // namespace trireme
