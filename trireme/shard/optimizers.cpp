// The registry: an optimizer is declared and listed here.
#include "trireme/base/error.h"
#include "trireme/shard/optimizer.h"

namespace trireme {

const OptimizerKind& adamw_optimizer();
const OptimizerKind& sgd_optimizer();

const std::vector<const OptimizerKind*>& optimizers() {
  static const std::vector<const OptimizerKind*> kinds{&adamw_optimizer(), &sgd_optimizer()};
  return kinds;
}

std::span<const EnumName<const OptimizerKind*>> optimizer_names() {
  static const auto kNames = [] {
    std::vector<EnumName<const OptimizerKind*>> names;
    for (const OptimizerKind* kind : optimizers()) names.push_back({kind, kind->name.c_str()});
    for (const OptimizerKind* kind : optimizers())
      for (const std::string& name : kind->other_names) names.push_back({kind, name.c_str()});
    return names;
  }();
  return kNames;
}

const OptimizerKind& find_optimizer(const std::string& name) {
  for (const OptimizerKind* kind : optimizers())
    if (kind->name == name) return *kind;
  throw InternalError(cat("no optimizer is called ", name));
}

}  // namespace trireme
