#include "trireme/plan/layer_work.h"

#include "trireme/plan/attention_work.h"

namespace trireme {
namespace {

class LayerWork {
 public:
  LayerWork(WorkCounter& count, const KindWork& kind)
      : count_(count), in_(count.inputs), model_(count.model), kind_(kind), attention_(count, kind) {}

  void forward(bool has_o, const SavedSlots& keeps) {
    if (!has_o) {
      project();
      attention_.forward();
    }
    residual_after_attention();
    count_.token_wise(WorkKind::norm, count_.hidden());
    route(/*has_logits=*/false);
    product(kind_.products.gate_up);
    down();
    share(/*has_gate_up=*/false);
    if (model_.shared_intermediate > 0) product(kind_.products.shared_down);
    norms_beside_mlp();
    post_norm();
    layer_input();
    if (model_.has_layer_inputs()) count_.token_wise(WorkKind::norm, count_.hidden());
    if (!sums_in_place()) count_.token_wise(WorkKind::copy, count_.hidden());  // y
    // x1 to where the MLP is added to it. A norm's input is made where it is kept.
    if (keeps[kX1] && !model_.post_norms) count_.token_wise(WorkKind::copy, count_.hidden());
    // A decoder makes what it keeps in its place, but for the input of a norm behind the MLP.
    const int64_t copied = model_.tiles != TileFormula::decoder ? model_.mlp_kept_width
                           : model_.experts_beside_mlp          ? 2 * model_.hidden
                           : model_.post_norms                  ? model_.hidden
                                                                : 0;
    if (keeps[kGateUp] && copied > 0) count_.token_wise(WorkKind::copy, static_cast<double>(copied));
    if (keeps[kGateUp] && model_.has_layer_inputs()) count_.token_wise(WorkKind::copy, count_.hidden());
    count_.gather(kind_.unit_elements);
  }

  void backward(const SavedSlots& slots) {
    count_.gather(kind_.unit_elements);
    if (!slots[kQkv]) project();
    if (!slots[kO]) attention_.forward();
    if (!slots[kX1])
      residual_after_attention();
    else
      post_norm();
    count_.token_wise(WorkKind::norm, count_.hidden());
    route(slots[kGateUp]);
    if (!slots[kGateUp]) product(kind_.products.gate_up);
    if (!slots[kGateUp] && downs_again()) down();
    if (model_.has_layer_inputs()) {
      if (!slots[kGateUp]) post_norm();  // what the input was added to
      layer_input();
      layer_input_backward();
    }
    norms_beside_mlp();
    if (model_.experts_beside_mlp) {
      if (!slots[kGateUp]) product(kind_.products.shared_down);
      count_.token_wise(WorkKind::norm_backward, 4 * count_.hidden());
    }
    if (model_.post_norms) count_.token_wise(WorkKind::norm_backward, 2 * count_.hidden());
    count_.token_wise(WorkKind::activation_backward, kind_.act_width);
    if (model_.experts > 0)  // dy by rows, then times the weights; act times d(act)
      count_.token_wise(WorkKind::copy, 2 * rows_width() + 2 * kind_.act_width);
    product_backward(kind_.products.down);
    product_backward(kind_.products.gate_up);
    if (model_.experts > 0) product_backward(kind_.products.router);
    sum_rows();
    if (model_.shared_intermediate > 0) {
      share(slots[kGateUp]);
      for (const auto* sides :
           {&kind_.products.shared_down, &kind_.products.shared_gate_up, &kind_.products.shared_gate})
        if (sides->n > 0) product_backward(*sides);
      if (!model_.experts_beside_mlp)  // d(act) by the share too; d(normed) is added to
        count_.token_wise(WorkKind::copy,
                          static_cast<double>(model_.shared_intermediate) + 2 * count_.hidden());
    }
    if (!sums_in_place()) count_.token_wise(WorkKind::copy, 2 * count_.hidden());  // dy, and d(x)
    count_.token_wise(WorkKind::norm_backward, count_.hidden());
    product_backward(kind_.products.out);
    attention_.backward(slots);
    count_.token_wise(WorkKind::norm, count_.hidden());
    if (turned_width() > 0) count_.token_wise(WorkKind::rotation, turned_width());
    scale_queries();
    attention_.part_gates();
    if (normed_width() > 0) {  // what is normed is made again
      const double turned = kind_.query_width() + kind_.key_width() + kind_.gate_width();
      product({model_.hidden, model_.v_norm ? kind_.products.qkv.n : static_cast<int64_t>(turned)});
      count_.token_wise(WorkKind::norm_backward, normed_width());
    }
    product_backward(kind_.products.qkv);
    count_.token_wise(WorkKind::norm_backward, count_.hidden());
  }

 private:
  // A decoder adds to y, and to d(y), where they lie, if tiles have their dtype.
  bool sums_in_place() const {
    return model_.tiles == TileFormula::decoder && in_.storage_bytes == in_.tile_bytes;
  }
  // Values of a token.
  double turned_width() const {
    return model_.rotary_tables > 0 && !kind_.delta_net ? kind_.query_width() + kind_.projected_key_width()
                                                        : 0;
  }
  double normed_width() const {  // of heads
    if (kind_.delta_net) return 0;
    return (model_.qk_norm ? kind_.query_width() + kind_.projected_key_width() : 0) +
           (model_.v_norm ? kind_.projected_key_width() : 0);
  }
  // Of its rows for experts, which are hidden wide.
  double rows_width() const { return static_cast<double>(model_.mlps_per_token() * model_.hidden); }
  double input_width() const { return static_cast<double>(model_.layer_input_width); }

  void product(const LayerProducts::Sides& sides) {
    count_.multiply(WorkKind::matmul, sides, count_.tile_rows);
    adapt(sides, /*products=*/1, /*values=*/static_cast<double>(sides.k + 2 * sides.n));
  }
  // LoRA beside a matrix (model/adapted_linear.h), so many times the two products of forward; `values` of a
  // token are read and written, which takes longer than the products where their rank is small. Modules that
  // are not adapted are taken off all alike.
  void adapt(const LayerProducts::Sides& sides, double products, double values) {
    if (sides.adapted == 0) return;
    const auto rank = static_cast<double>(model_.adapters->rank);
    const double elements = rank * static_cast<double>(sides.adapted * sides.k + sides.n);
    count_.add(WorkKind::matmul, rank, count_.tile_rows,
               kind_.products.adapted_share * products * 2 * count_.rows * elements);
    count_.token_wise(WorkKind::copy, kind_.products.adapted_share * values / 2);
  }
  // d(input) and d(weight)
  void product_backward(const LayerProducts::Sides& sides) {
    count_.multiply(WorkKind::matmul, sides, count_.tile_rows);
    if (!model_.adapted())
      count_.multiply(WorkKind::weight_gradient, sides, count_.gradient_width(count_.tile_rows));
    // v twice, u, d(x) and both gradients
    adapt(sides, /*products=*/3, /*values=*/static_cast<double>(4 * sides.k + 3 * sides.n));
  }
  // Probabilities of the router's logits; rows are brought side by side.
  void route(bool has_logits) {
    if (model_.experts == 0) return;
    if (!has_logits) product(kind_.products.router);
    count_.token_wise(WorkKind::copy, 2 * static_cast<double>(model_.experts) + rows_width());
  }
  // Each token's rows are added up in fp32.
  void sum_rows() {
    if (model_.experts > 0) count_.token_wise(WorkKind::copy, 3 * rows_width());
  }

  void project() {
    count_.token_wise(WorkKind::norm, count_.hidden());
    product(kind_.products.qkv);
    if (turned_width() > 0) count_.token_wise(WorkKind::rotation, turned_width());
    scale_queries();
    if (normed_width() > 0) count_.token_wise(WorkKind::norm, normed_width());
    attention_.take_qkv();
  }
  void scale_queries() {
    if (model_.scales_queries(in_.tokens) && !kind_.delta_net)
      count_.token_wise(WorkKind::copy, kind_.query_width());
  }
  void residual_after_attention() {
    attention_.gate();
    product(kind_.products.out);
    count_.token_wise(WorkKind::copy, count_.hidden());  // what the product is added to
    post_norm();
  }
  // Of the expert that every token has: gate and up, and its share, by which act is multiplied.
  void share(bool has_gate_up) {
    if (model_.shared_intermediate == 0) return;
    if (!has_gate_up) product(kind_.products.shared_gate_up);
    if (model_.experts_beside_mlp) return;
    product(kind_.products.shared_gate);
    count_.token_wise(WorkKind::copy, static_cast<double>(model_.shared_intermediate));
  }
  void down() {
    count_.token_wise(WorkKind::activation, kind_.act_width);
    product(kind_.products.down);
    sum_rows();
  }
  // The last norm's backward reads what down made.
  bool downs_again() const { return model_.post_norms || model_.tiles == TileFormula::encoder; }
  // Of x1 before experts and router, of what they and the MLP beside them give.
  void norms_beside_mlp() {
    if (model_.experts_beside_mlp) count_.token_wise(WorkKind::norm, 4 * count_.hidden());
  }
  void post_norm() {
    if (model_.post_norms) count_.token_wise(WorkKind::norm, count_.hidden());
  }

  // What a layer is told beside x (model/families/layer_input.h).
  void layer_input() {
    if (!model_.has_layer_inputs()) return;
    product(kind_.products.input_gate);
    count_.token_wise(WorkKind::copy, input_width());
    count_.token_wise(WorkKind::activation, input_width());
    product(kind_.products.input_projection);
  }
  void layer_input_backward() {
    count_.token_wise(WorkKind::norm_backward, count_.hidden());
    count_.token_wise(WorkKind::activation_backward, input_width());
    product_backward(kind_.products.input_projection);
    product_backward(kind_.products.input_gate);
    count_.token_wise(WorkKind::copy, count_.hidden() + input_width());
  }

  WorkCounter& count_;
  const ForecastInputs& in_;
  const ModelSizes& model_;
  const KindWork& kind_;
  AttentionWork attention_;
};

}  // namespace

void count_layer_forward(WorkCounter& count, const KindWork& kind, bool has_o, const SavedSlots& keeps) {
  LayerWork(count, kind).forward(has_o, keeps);
}

void count_layer_backward(WorkCounter& count, const KindWork& kind, const SavedSlots& slots) {
  LayerWork(count, kind).backward(slots);
}

}  // namespace trireme
