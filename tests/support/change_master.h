// Changes a unit's masters as a step does.
#pragma once

#include "trireme/shard/parameter_store.h"

namespace trireme::testing {

// `change(master)` gets this rank's share, fp32.
template <typename Change>
void change_master(ParameterStore& store, int unit, const Change& change) {
  const MasterShare master = store.open_master(unit);
  const at::Tensor fp32 = master.fp32();
  change(fp32);
  master.set(fp32);
  store.close_master(unit);
}

}  // namespace trireme::testing
