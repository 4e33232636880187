// What is trained whole beside LoRA's matrices: norms, the embedding and the output matrix, found by the ends of their
// modules' names, as PEFT reads modules_to_save.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trireme/model/lora.h"
#include "trireme/model/model_layout.h"

namespace trireme {

class WholeModules {
 public:
  // `inside`: whether the model is one inside a whole model, in whose files names are longer.
  WholeModules(const ModelLayout& layout, const LoraConfig& lora, bool inside)
      : layout_(layout), lora_(lora), inside_(inside) {}

  // Those of a unit of the model, built into its unit of adapters, of which `tensor` is the next one.
  std::vector<WholeTensor> add(int unit, UnitBuilder& build, size_t& tensor);
  // After all units. Throws ConfigError, naming `origin`, for a name that the model does not have, or that means what
  // is not built.
  void check(const std::string& origin) const;

 private:
  bool can_be_whole(int unit, size_t slot, const ParameterSpec& spec) const;
  bool is_meant(const std::string& module, const std::string& end) const;
  bool is_meant(const std::string& module) const;
  std::string can_be_text() const;
  std::string shortest_name(const std::string& module) const;

  const ModelLayout& layout_;
  const LoraConfig& lora_;
  bool inside_;
  std::set<std::string> can_be_, cannot_be_;  // modules
};

}  // namespace trireme
