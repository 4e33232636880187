#include "trireme/plan/planned_step.h"

#include "trireme/base/sum_of.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/plan/layer_products.h"

namespace trireme {

double PlannedStep::tokens() const {
  return static_cast<double>(inputs.batch * inputs.tokens * inputs.micro_batches * data_parallel());
}

double PlannedStep::model_flops() const {
  const double samples = static_cast<double>(inputs.batch * inputs.micro_batches * data_parallel());
  const ModelSizes& model = inputs.model;
  const double a_token = model.adapted()
                             ? 4 * matmul_parameters(model) +
                                   6 * static_cast<double>(sum_of(model.adapters->lora_elements)) +
                                   (model.trains_output() ? 2 * output_matrix(model).elements() : 0)
                             : 6 * matmul_parameters(model);
  const AttentionHeads common = model.common_heads();
  const double of_states = delta_flops_per_token(model.delta_net, model.delta_layers);
  return (a_token + of_states) * tokens() +
         samples * attention_pairs.flops(common, model.full_heads.value_or(common));
}

double matmul_parameters(const ModelSizes& model) {
  const double dense = model.tiles == TileFormula::encoder ? encoder_head_dense(model).elements() : 0;
  ForecastInputs inputs;
  inputs.model = model;
  double layers = 0;
  for (const ForecastInputs& kind : layer_kinds(inputs).inputs)
    layers += static_cast<double>(kind.model.layers) * LayerProducts(kind.model).elements();
  if (model.has_layer_inputs()) layers += layer_inputs_projection(model).elements();
  return layers + dense + output_matrix(model).elements();
}

}  // namespace trireme
