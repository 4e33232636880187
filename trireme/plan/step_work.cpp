#include "trireme/plan/step_work.h"

#include "trireme/base/sum_of.h"
#include "trireme/forecast/layer_buffers.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/plan/layer_work.h"

namespace trireme {
namespace {

class StepCounter {
 public:
  explicit StepCounter(const PlannedStep& step)
      : count_(step),
        step_(step),
        in_(step.inputs),
        trained_(trained_inputs(step.inputs)),
        model_(step.inputs.model) {
    LayerKinds kinds = layer_kinds(in_);
    kind_of_layer_ = std::move(kinds.of_layer);
    const AttentionPairs& pairs = step.attention_pairs;
    for (size_t i = 0; i < kinds.inputs.size(); ++i) {
      const LayerKind kind = kinds.kinds[i];
      const double of_kind = kind == LayerKind::common       ? pairs.common
                             : kind == LayerKind::full_heads ? pairs.full
                                                             : 0;
      kinds_.emplace_back(kinds.inputs[i], of_kind / static_cast<double>(kinds.layers_of(kind)));
    }
  }

  StepWork run() {
    count_.add(WorkKind::embedding, count_.head_rows * count_.hidden(), 0, 2 * count_.rows * count_.hidden());
    layer_inputs();
    forward_of_layers();
    count_.work.forward_items = count_.work.items;
    const double gathered_forward = count_.gathered_elements;
    head();
    backward_of_layers();
    layer_inputs_backward();
    sum_gradients(/*of_step=*/false);
    if (count_.gathered_elements > 0)
      count_.work.forward_gathered_share = gathered_forward / count_.gathered_elements;
    for (auto* items : {&count_.work.items, &count_.work.forward_items})
      for (WorkItem& item : *items) item.amount *= static_cast<double>(in_.micro_batches);
    for (TrafficItem& item : count_.work.traffic) {
      item.calls *= static_cast<double>(in_.micro_batches);
      item.bytes *= static_cast<double>(in_.micro_batches);
    }
    update();
    return std::move(count_.work);
  }

 private:
  // Of all layers, before them and behind their backward.
  LayerProducts::Sides inputs_projection() const { return layer_inputs_projection(model_); }
  void layer_inputs() {
    if (!model_.has_layer_inputs()) return;
    const double values = static_cast<double>(inputs_projection().n);
    count_.multiply(WorkKind::matmul, inputs_projection(), count_.head_rows);
    count_.add(WorkKind::norm, count_.head_rows * values, 0, count_.rows * values);
    count_.add(WorkKind::embedding, count_.head_rows * values, 0, count_.rows * values);
    count_.add(WorkKind::copy, count_.head_rows * values, 0, 2 * count_.rows * values);
    count_.gather(model_.unit_elements[kLayerInputsUnit]);
  }
  void layer_inputs_backward() {
    if (!model_.has_layer_inputs() || model_.adapted()) return;
    const double values = static_cast<double>(inputs_projection().n);
    count_.multiply(WorkKind::matmul, inputs_projection(), count_.head_rows);
    count_.multiply(WorkKind::matmul, inputs_projection(), count_.head_rows);
    count_.multiply(WorkKind::weight_gradient, inputs_projection(), count_.gradient_width(count_.head_rows));
    count_.add(WorkKind::norm_backward, count_.head_rows * values, 0, count_.rows * values);
    count_.add(WorkKind::embedding, count_.head_rows * values, 0, count_.rows * values);
    count_.add(WorkKind::copy, count_.head_rows * values, 0, 3 * count_.rows * values);
    count_.gather(model_.unit_elements[kLayerInputsUnit]);
  }

  size_t kind_index(int64_t layer) const { return kind_of_layer_.at(static_cast<size_t>(layer)); }
  const KindWork& kind_of(int64_t layer) const { return kinds_[kind_index(layer)]; }
  // Layers that do the same are counted once, so many times.
  void forward_of_layers() {
    const auto slots = [&](int64_t layer) { return in_.recompute.kept_by_forward(layer).reset(kX); };
    for (int64_t layer = 0, end = 0; layer < in_.recompute.layers; layer = end) {
      while (end < in_.recompute.layers && slots(end) == slots(layer) && kind_index(end) == kind_index(layer))
        ++end;
      count_.times = static_cast<double>(end - layer);
      count_layer_forward(count_, kind_of(layer), /*has_o=*/false, slots(layer));
    }
    count_.times = 1;
  }
  void backward_of_layers() {
    const RecomputePlan& plan = in_.recompute;
    const auto does_as = [&](int64_t begin, int64_t end, int64_t before) {
      for (int64_t layer = begin; layer < end; ++layer)
        if (plan.kept_by_forward(layer) != plan.kept_by_forward(layer - before) ||
            kind_index(layer) != kind_index(layer - before))
          return false;
      return true;
    };
    for (int64_t end = plan.layers; end > 0;) {
      const int64_t begin = plan.group_begin(end - 1), layers = end - begin;
      int64_t groups = 1;
      while (begin >= groups * layers && layers == plan.checkpoint_every &&
             does_as(begin, end, groups * layers))
        ++groups;
      count_.times = static_cast<double>(groups);
      backward_of_group(begin, end);
      count_.times = 1;
      end = begin - (groups - 1) * layers;
    }
  }

  void backward_of_group(int64_t begin, int64_t end) {
    const RecomputePlan& plan = in_.recompute;
    for (int64_t layer = begin; layer + 1 < end; ++layer)
      count_layer_forward(count_, kind_of(layer), plan.kept_by_forward(layer)[kO], plan.kept_by_rerun(layer));
    for (int64_t layer = end - 1; layer >= begin; --layer) {
      SavedSlots slots = plan.kept_by_forward(layer);
      if (layer + 1 < end) slots |= plan.kept_by_rerun(layer);
      count_layer_backward(count_, kind_of(layer), slots);
    }
  }

  void head() {
    const LayerProducts::Sides matrix = output_matrix(model_);
    constexpr int64_t kCached_elements = int64_t{1} << 20;
    const bool cached = matrix.k * matrix.n <= kCached_elements;
    const WorkKind product = cached ? WorkKind::matmul : WorkKind::head_matmul;
    const WorkKind gradient = cached ? WorkKind::weight_gradient : WorkKind::head_weight_gradient;
    const auto vocabulary = static_cast<double>(model_.vocab);
    for (const auto& [kind, width] : {std::pair{WorkKind::norm, count_.hidden()},
                                      {WorkKind::norm_backward, count_.hidden()},
                                      {WorkKind::cross_entropy, vocabulary},
                                      {WorkKind::copy, 2 * count_.hidden()}})
      count_.add(kind, count_.head_rows * width, 0, count_.rows * width);
    if (model_.caps_logits)
      count_.add(WorkKind::copy, count_.head_rows * vocabulary, 0, 3 * count_.rows * vocabulary);
    count_.multiply(product, matrix, count_.head_rows);
    count_.multiply(product, matrix, count_.head_rows);
    if (model_.trains_output()) count_.multiply(gradient, matrix, count_.gradient_width(count_.head_rows));
    if (model_.tiles == TileFormula::encoder) {
      const LayerProducts::Sides dense = encoder_head_dense(model_);
      count_.multiply(WorkKind::matmul, dense, count_.head_rows);
      count_.multiply(WorkKind::matmul, dense, count_.head_rows);
      count_.multiply(WorkKind::weight_gradient, dense, count_.gradient_width(count_.head_rows));
    }
    count_.gather(model_.unit_elements.back() + (model_.tied ? model_.unit_elements.front() : 0));
    count_.gather(model_.unit_elements.front());
  }

  // ZeRO 2 and 3, and updates in backward, sum each micro-batch's gradients; ZeRO 0 and 1 those of the step.
  void sum_gradients(bool of_step) {
    const bool of_each = in_.zero >= 2 || in_.update_in_backward;
    if (of_step == of_each) return;
    const std::vector<int64_t>& units = trained_.model.unit_elements;
    const auto elements = static_cast<double>(sum_of(units));
    const double scatters = in_.zero == 0 ? 2 : 1;  // all-reduce: reduce-scatter and all-gather
    count_.send(TrafficKind::summed_gradients, scatters * static_cast<double>(units.size()),
                scatters * elements * static_cast<double>(in_.reduce_bytes) * count_.others_share());
  }

  void offload_activations() {
    if (!activations_leave(in_)) return;
    const std::vector<int64_t> leaving = leaving_bytes_of_layers(in_);
    const auto bytes = static_cast<double>(sum_of(leaving) * in_.micro_batches);
    count_.send(TrafficKind::offloaded_activations, static_cast<double>(leaving.size()), bytes);
  }

  void update() {
    sum_gradients(/*of_step=*/true);
    offload_activations();
    const std::vector<int64_t>& units = trained_.model.unit_elements;
    const auto whole = static_cast<double>(sum_of(units));
    const double share = in_.zero == 0 ? 1 : 1 / static_cast<double>(in_.ranks), stepped = share * whole;
    if (in_.offload.optimizer == Offload::none) {
      for (const int64_t elements : units) {
        const double of_unit = share * static_cast<double>(elements);
        count_.add(WorkKind::optimizer, of_unit, 0, of_unit);
      }
    } else {
      count_.work.host_optimizer_elements = stepped;
      // Sums, and new values back.
      const int64_t sums = gradients_leave_in_backward(in_) ? 2 * in_.micro_batches - 1 : 1;
      count_.send(TrafficKind::offloaded_gradients, static_cast<double>((sums + 1) * std::ssize(units)),
                  stepped * static_cast<double>(sums * kFloat_bytes + in_.tile_bytes));
    }
    if (in_.offload.optimizer == Offload::disk) {
      // As shard/optimizer.h and shard/masters.h hold them: a tensor a unit each.
      const int64_t of_master = master_bytes(trained_);
      const int64_t of_element = in_.moments * in_.state_bytes + of_master;
      count_.send(TrafficKind::offloaded_optimizer,
                  static_cast<double>((in_.moments + (of_master > 0 ? 1 : 0)) * std::ssize(units)),
                  stepped * static_cast<double>(of_element));
    }
    if (trained_.zero == 1 || trained_.zero == 2)
      count_.send(TrafficKind::traded_parameters, static_cast<double>(units.size()),
                  whole * static_cast<double>(in_.tile_bytes) * count_.others_share());
  }

  WorkCounter count_;
  const PlannedStep& step_;
  const ForecastInputs& in_;
  const ForecastInputs trained_;
  const ModelSizes& model_;
  std::vector<KindWork> kinds_;
  std::vector<size_t> kind_of_layer_;
};

}  // namespace

StepWork step_work(const PlannedStep& step) {
  return StepCounter(step).run();
}

}  // namespace trireme
