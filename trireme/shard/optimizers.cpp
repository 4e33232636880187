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

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerKind* kind : optimizers()) names.push_back(kind->name);
  return names;
}

const OptimizerKind& find_optimizer(const std::string& name) {
  std::string list;
  for (const OptimizerKind* kind : optimizers()) {
    if (kind->name == name) return *kind;
    list += (list.empty() ? "" : ", ") + kind->name;
  }
  throw ConfigError(cat("--optim ", quotation(name), ": expected one of ", list));
}

}  // namespace trireme
