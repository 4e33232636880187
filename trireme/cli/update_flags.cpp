#include "trireme/cli/update_flags.h"

#include "trireme/base/error.h"

namespace trireme {

void UpdateFlags::declare(OptionParser& parser) {
  parser.flag("bf16", bf16, "compute in bf16, with fp32 masters and sums");
  parser.flag("fp16", fp16, "compute in fp16, with fp32 masters and sums and a dynamic loss scale");
  parser.choice("optim", optim, optimizer_names(), "optimizer");
  parser.choice("optim_state_dtype", optim_state_dtype, {"fp32", "bf16"},
                "of AdamW's moments; bf16 is rounded stochastically");
  parser.choice("reduce_dtype", reduce_dtype, {"fp32", "bf16"}, "in which gradients travel; sums are fp32");
  parser.choice("offload_optimizer", offload_optimizer, {"none", "cpu", "disk"},
                "where fp32 masters and moments lie; the step runs on the host then");
  parser.flag("update_in_backward", update_in_backward,
              "step each layer as soon as its gradient is whole, so that gradients never exist together");
}

void UpdateFlags::check() const {
  if (bf16 && fp16) throw ConfigError("--bf16 and --fp16 contradict each other; give one of them");
}

void UpdateFlags::apply(EngineOptions& options) const {
  check();
  const auto dtype = [](const std::string& name) { return name == "bf16" ? at::kBFloat16 : at::kFloat; };
  options.precision = parse_precision(this->dtype());
  options.optimizer.kind = &find_optimizer(optim);
  options.optimizer.state_dtype = dtype(optim_state_dtype);
  options.reduce_dtype = dtype(reduce_dtype);
  options.offload.optimizer = parse_offload("offload_optimizer", offload_optimizer);
  options.update_in_backward = update_in_backward;
}

}  // namespace trireme
