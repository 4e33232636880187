#include "trireme/shard/masters.h"

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"
#include "trireme/memory/through_pinned.h"
#include "trireme/shard/optimizer_bytes.h"

namespace trireme {

std::vector<UnitShare> owned_shares(const std::vector<FlatUnit>& units, const Group& group, bool sharded) {
  std::vector<UnitShare> shares;
  shares.reserve(units.size());
  for (const FlatUnit& unit : units) {
    TRIREME_ASSERT(!sharded || unit.elements == padded_elements(unit.elements, group.size()), "unit ",
                   unit.name, " of ", unit.elements, " elements without its padding for ", group.size(),
                   " ranks");
    shares.push_back(sharded ? share_of(unit.elements, group.size(), group.rank())
                             : UnitShare{0, unit.elements});
  }
  return shares;
}

std::unique_ptr<UnitTensors> make_masters(const std::vector<UnitShare>& shares,
                                          const ParameterSettings& settings) {
  if (!settings.masters || settings.compute_dtype == at::kFloat) return nullptr;
  const MemoryScope scope(MemoryCategory::optimizer);
  std::vector<int64_t> elements;
  elements.reserve(shares.size());
  for (const UnitShare& share : shares) elements.push_back(share.elements);
  return make_unit_tensors(elements, splits_masters(settings) ? at::kShort : at::kFloat, settings.device,
                           settings.optimizer, settings.spill);
}

bool splits_masters(const ParameterSettings& settings) {
  return settings.masters &&
         masters_are_split(settings.compute_dtype == at::kBFloat16, settings.parameters, settings.optimizer);
}

MasterShare open_share(const at::Tensor& values, const at::Tensor& stored,
                       const ParameterSettings& settings) {
  if (!stored.defined())
    return {settings.optimizer == Offload::none ? values.to(settings.device)
                                                : on_host(values, settings.pinned.get()),
            {},
            {}};
  if (splits_masters(settings)) return {{}, stored, values};
  if (values.device() == stored.device()) return {stored, {}, values};
  if (stored.is_cpu()) return {stored, {}, {}};
  // Rounded where the step is, so that half as many bytes travel.
  const MemoryScope scope(MemoryCategory::parameters);
  return {stored, {}, at::zeros(values.sizes(), stored.options().dtype(values.scalar_type()))};
}

at::Tensor gather_parts(Group& group, const at::Tensor& part, std::span<const int64_t> of_ranks,
                        at::Device device) {
  // Backends take tensors of the run's device. A copy there waits for the gather before.
  const at::Tensor here = [&] {
    const ActivityWait wait(group.activity());
    return part.to(device).contiguous();
  }();
  return all_gather(group, here, of_ranks);
}

at::Tensor gather_shares(Group& group, const at::Tensor& share, bool sharded, at::Device device) {
  return sharded ? gather_parts(group, share, equal_shares(share.size(0), group.size()), device) : share;
}

}  // namespace trireme
