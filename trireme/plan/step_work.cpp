#include "trireme/plan/step_work.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/sum_of.h"
#include "trireme/forecast/layer_kinds.h"
#include "trireme/forecast/memory_timeline.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/kernels/delta_rule_bytes.h"
#include "trireme/kernels/score_tile_sizes.h"
#include "trireme/kernels/token_tiles.h"
#include "trireme/plan/kind_work.h"
#include "trireme/plan/layer_products.h"

namespace trireme {
namespace {

// Of an encoder's head, before the output matrix.
LayerProducts::Sides head_dense(const ModelSizes& model) {
  return {model.hidden, model.hidden};
}

class Counter {
 public:
  explicit Counter(const PlannedStep& step)
      : step_(step),
        in_(step.inputs),
        trained_(trained_inputs(step.inputs)),
        model_(step.inputs.model),
        rows_(static_cast<double>(in_.batch * in_.shard_tokens)),
        tile_rows_(static_cast<double>(largest_tile(in_.batch * in_.shard_tokens, in_.tile_tokens))),
        head_rows_(static_cast<double>(largest_tile(in_.batch * in_.shard_tokens, in_.logits_tile_tokens))) {
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
    add(WorkKind::embedding, head_rows_ * m(), 0, 2 * rows_ * m());
    layer_inputs();
    forward_of_layers();
    work_.forward_items = work_.items;
    head();
    backward_of_layers();
    layer_inputs_backward();
    sum_gradients(/*of_step=*/false);
    for (auto* items : {&work_.items, &work_.forward_items})
      for (WorkItem& item : *items) item.amount *= static_cast<double>(step_.accumulation);
    for (TrafficItem& item : work_.traffic) {
      item.calls *= static_cast<double>(step_.accumulation);
      item.bytes *= static_cast<double>(step_.accumulation);
    }
    update();
    return std::move(work_);
  }

 private:
  double m() const { return static_cast<double>(model_.hidden); }
  // Values of a token.
  bool delta_net() const { return kind_->delta_net.has_value(); }
  double query_width() const {  // of o
    return static_cast<double>(delta_net() ? kind_->delta_net->heads.output_columns()
                                           : kind_->heads.query_width());
  }
  double key_width() const { return static_cast<double>(kind_->heads.key_value_width()); }
  double projected_key_width() const {
    return static_cast<double>(kind_->heads.projected_keys() * kind_->heads.width);
  }
  double turned_width() const {
    return model_.rotary_tables > 0 && !delta_net() ? query_width() + projected_key_width() : 0;
  }
  double qkv_width() const {
    return delta_net() ? static_cast<double>(kind_->delta_net->heads.columns())
                       : query_width() + 2 * key_width();
  }
  double gate_width() const {
    return delta_net() ? query_width() : static_cast<double>(kind_->heads.gate_width());
  }
  double normed_width() const {  // of heads
    if (delta_net()) return 0;
    return (model_.qk_norm ? query_width() + projected_key_width() : 0) +
           (model_.v_norm ? projected_key_width() : 0);
  }
  // Of its rows for experts, which are hidden wide.
  double rows_width() const { return static_cast<double>(model_.mlps_per_token() * model_.hidden); }
  double act_width() const { return kind_->act_width; }

  void add(WorkKind kind, double size, double width, double amount) {
    for (WorkItem& item : work_.items)
      if (item.kind == kind && item.size == size && item.width == width) {
        item.amount += times_ * amount;
        return;
      }
    work_.items.push_back({kind, size, width, times_ * amount});
  }
  void send(TrafficKind kind, double calls, double bytes) {
    if (bytes <= 0) return;
    for (TrafficItem& item : work_.traffic)
      if (item.kind == kind) {
        item.calls += times_ * calls;
        item.bytes += times_ * bytes;
        return;
      }
    work_.traffic.push_back({kind, times_ * calls, times_ * bytes});
  }

  // Of every token, `width` values each, in tiles.
  void token_wise(WorkKind kind, double width) { add(kind, tile_rows_ * width, 0, rows_ * width); }

  void multiply(WorkKind kind, const LayerProducts::Sides& sides, double width) {
    add(kind, static_cast<double>(std::min(sides.k, sides.n)), width * sides.rows_share,
        2 * rows_ * sides.elements());
  }
  void product(const LayerProducts::Sides& sides) {
    multiply(WorkKind::matmul, sides, tile_rows_);
    adapt(sides, /*products=*/1, /*values=*/static_cast<double>(sides.k + 2 * sides.n));
  }
  // LoRA beside a matrix (model/adapted_linear.h), so many times the two products of forward; `values` of a
  // token are read and written, which takes longer than the products where their rank is small. Modules that
  // are not adapted are taken off all alike.
  void adapt(const LayerProducts::Sides& sides, double products, double values) {
    if (sides.adapted == 0) return;
    const auto rank = static_cast<double>(model_.adapter_rank);
    const double elements = rank * static_cast<double>(sides.adapted * sides.k + sides.n);
    add(WorkKind::matmul, rank, tile_rows_, kind_->products.adapted_share * products * 2 * rows_ * elements);
    token_wise(WorkKind::copy, kind_->products.adapted_share * values / 2);
  }
  // d(input) and d(weight)
  void product_backward(const LayerProducts::Sides& sides) {
    multiply(WorkKind::matmul, sides, tile_rows_);
    if (!model_.adapted()) multiply(WorkKind::weight_gradient, sides, gradient_width(tile_rows_));
    // v twice, u, d(x) and both gradients
    adapt(sides, /*products=*/3, /*values=*/static_cast<double>(4 * sides.k + 3 * sides.n));
  }
  // Probabilities of the router's logits; rows are brought side by side.
  void route(bool has_logits) {
    if (model_.experts == 0) return;
    if (!has_logits) product(kind_->products.router);
    token_wise(WorkKind::copy, 2 * static_cast<double>(model_.experts) + rows_width());
  }
  // Each token's rows are added up in fp32.
  void sum_rows() {
    if (model_.experts > 0) token_wise(WorkKind::copy, 3 * rows_width());
  }

  // The rows that a weight gradient's rate is looked up by. Rates are of products that are added, which read
  // the sum and write it; the first one only writes it. So n products pass over the sum 2 n - 1 times and not
  // 2 n, as products of that many more rows would.
  double gradient_width(double rows) const {
    const double of_micro_batch = std::ceil(rows_ / rows);
    const double products = in_.zero < 2 ? of_micro_batch * step_.accumulation : of_micro_batch;
    return rows * 2 * products / (2 * products - 1);
  }

  // The rule's products are of 64 tokens, all in fp32; each value of a head is read and written by some dozen
  // operations beside them. An estimate: no profile measures it.
  void mix_columns(double passes) {
    const DeltaHeads& heads = kind_->delta_net->heads;
    const auto head_tokens = static_cast<double>(in_.batch * in_.tokens * kind_->rank_value_heads);
    add(WorkKind::matmul, kDeltaChunk_tokens, kDeltaChunk_tokens,
        passes * head_tokens * delta_rule_forward_flops(heads.key_width, heads.value_width));
    add(WorkKind::copy, tile_rows_ * query_width(), 0,
        passes * 12 * head_tokens * static_cast<double>(heads.key_width + heads.value_width));
  }

  void attend(WorkKind kind, double flops_a_pair_and_value) {
    if (delta_net()) return mix_columns(kind == WorkKind::attention_forward ? 1 : 4);
    const double document =
        step_.document_tokens > 0 ? step_.document_tokens : static_cast<double>(in_.tokens);
    const double pairs =
        kind_->pairs * static_cast<double>(in_.batch * kind_->rank_heads) / static_cast<double>(in_.ring);
    const auto width = static_cast<double>(kind_->heads.width);
    if (in_.score_tiles)
      return attend_by_tiles(kind, flops_a_pair_and_value * width, pairs + hidden_pairs_of_tiles(document));
    add(kind, document / in_.ring, width, flops_a_pair_and_value * width * pairs);
  }
  // Of all heads of a layer, on average: a block of rows is cut by the diagonal and by a window's other end, and half
  // of the square there is hidden.
  double hidden_pairs_of_tiles(double document) const {
    const double rows = std::min(
        document, static_cast<double>(score_tile_sizes(kind_->rank_heads, in_.ring_tokens, in_.tokens).rows));
    const auto sliding = static_cast<double>(std::ranges::count_if(model_.layer_windows, [&](int64_t window) {
      return window > 0 && static_cast<double>(window) < document;
    }));
    const double ends = 1 + sliding / static_cast<double>(model_.layers);
    return rows / 2 * ends * static_cast<double>(in_.batch * in_.ring_tokens * kind_->rank_heads);
  }
  // Products of matrices, and the traffic of scores between them. An estimate: no profile measures it.
  void attend_by_tiles(WorkKind kind, double flops_a_pair, double pairs) {
    add(WorkKind::matmul, static_cast<double>(kind_->heads.width), static_cast<double>(kScoreTile_keys),
        flops_a_pair * pairs);
    const ScoreTraffic score = score_traffic(in_.storage_bytes);
    const int64_t score_bytes =
        kind == WorkKind::attention_forward ? score.forward_bytes : score.backward_bytes;
    const auto copied_bytes = static_cast<double>(2 * in_.storage_bytes);  // a value is read and written
    add(WorkKind::copy, pairs, 0, static_cast<double>(score_bytes) / copied_bytes * pairs);
  }

  void project() {
    token_wise(WorkKind::norm, m());
    product(kind_->products.qkv);
    if (turned_width() > 0) token_wise(WorkKind::rotation, turned_width());
    scale_queries();
    if (normed_width() > 0) token_wise(WorkKind::norm, normed_width());
    copy_shared_keys();
    part_gates();
    if (!chunked()) send_qkv();
  }
  // Into a layer that takes them; their gradients are added up.
  void copy_shared_keys() {
    if (kind_->heads.share_keys) token_wise(WorkKind::copy, 2 * key_width());
  }
  void scale_queries() {
    if (model_.scales_queries(in_.tokens) && !delta_net()) token_wise(WorkKind::copy, query_width());
  }
  // Of heads; a DeltaNet's with the ranks of a ring too.
  bool exchanges() const { return (delta_net() ? in_.ulysses * in_.ring : in_.ulysses) > 1; }
  // With head chunks attention itself sends q, k and v, in backward again: they are kept by tokens.
  bool chunked() const { return in_.head_chunks > 1 && !delta_net(); }
  TrafficKind exchange() const { return delta_net() ? TrafficKind::columns : TrafficKind::ulysses; }
  double messages() const { return chunked() ? in_.head_chunks : 1; }
  // What one product gives, into what is mixed and what gates it; or the way back.
  void part_gates() {
    if (gate_width() > 0) token_wise(WorkKind::copy, qkv_width() + gate_width());
  }
  void send_qkv() {
    send(exchange(), messages(), static_cast<double>(kind_->ulysses.qkv_to_heads));
    if (exchanges()) token_wise(WorkKind::copy, qkv_width());
  }
  void attention_forward() {
    if (chunked()) send_qkv();
    attend(WorkKind::attention_forward, 4);
    add_up_rounds(query_width(), 5 * kFloat_bytes);  // o of the sum is read twice and written twice
    send(TrafficKind::ring, ring_calls(), static_cast<double>(kind_->ring.forward));
    send(exchange(), messages(), static_cast<double>(kind_->ulysses.o_to_seq));
    if (exchanges()) token_wise(WorkKind::copy, query_width());
  }
  // attention/ring_attention.cpp: each round's results are added to fp32 sums, after a GPU's 16 bits are
  // widened. In copies of a value, which read and write one.
  void add_up_rounds(double width, double bytes) {
    if (in_.ring == 1 || in_.gathers_keys || delta_net()) return;
    const double widened = in_.fused_on_gpu && in_.storage_bytes == 2 ? 2 + kFloat_bytes : 0;
    const double values = rows_ * width, of_copy = 2 * static_cast<double>(in_.tile_bytes);
    add(WorkKind::copy, values, 0, ring_calls() * values * (widened + bytes) / of_copy);
  }
  double ring_calls() const { return static_cast<double>(in_.gathers_keys ? 1 : in_.ring - 1); }

  void residual_after_attention() {
    if (gate_width() > 0) token_wise(WorkKind::activation, gate_width());
    if (delta_net()) token_wise(WorkKind::norm, query_width());
    product(kind_->products.out);
    token_wise(WorkKind::copy, m());  // what the product is added to
    post_norm();
  }
  // Of the expert that every token has: gate and up, and its share, by which act is multiplied.
  void share(bool has_gate_up) {
    if (model_.shared_intermediate == 0) return;
    if (!has_gate_up) product(kind_->products.shared_gate_up);
    if (model_.experts_beside_mlp) return;
    product(kind_->products.shared_gate);
    token_wise(WorkKind::copy, static_cast<double>(model_.shared_intermediate));
  }
  void down() {
    token_wise(WorkKind::activation, act_width());
    product(kind_->products.down);
    sum_rows();
  }
  // The last norm's backward reads what down made.
  bool downs_again() const { return model_.post_norms || model_.tiles == TileFormula::encoder; }
  // Of x1 before experts and router, of what they and the MLP beside them give.
  void norms_beside_mlp() {
    if (model_.experts_beside_mlp) token_wise(WorkKind::norm, 4 * m());
  }
  void post_norm() {
    if (model_.post_norms) token_wise(WorkKind::norm, m());
  }

  void forward(bool has_o, const SavedSlots& keeps) {
    if (!has_o) {
      project();
      attention_forward();
    }
    residual_after_attention();
    token_wise(WorkKind::norm, m());
    route(/*has_logits=*/false);
    product(kind_->products.gate_up);
    down();
    share(/*has_gate_up=*/false);
    if (model_.shared_intermediate > 0) product(kind_->products.shared_down);
    norms_beside_mlp();
    post_norm();
    layer_input();
    if (model_.has_layer_inputs()) token_wise(WorkKind::norm, m());
    token_wise(WorkKind::copy, m());
    if (keeps[kX1]) token_wise(WorkKind::copy, m());
    // A decoder makes what it keeps in its place, but for the input of a norm behind the MLP.
    const int64_t copied = model_.tiles != TileFormula::decoder ? model_.mlp_kept_width
                           : model_.experts_beside_mlp          ? 2 * model_.hidden
                           : model_.post_norms                  ? model_.hidden
                                                                : 0;
    if (keeps[kGateUp] && copied > 0) token_wise(WorkKind::copy, static_cast<double>(copied));
    if (keeps[kGateUp] && model_.has_layer_inputs()) token_wise(WorkKind::copy, m());
    gather_layer();
  }

  // What a layer is told beside x (model/families/layer_input.h).
  double input_width() const { return static_cast<double>(model_.layer_input_width); }
  void layer_input() {
    if (!model_.has_layer_inputs()) return;
    product(kind_->products.input_gate);
    token_wise(WorkKind::copy, input_width());
    token_wise(WorkKind::activation, input_width());
    product(kind_->products.input_projection);
  }
  void layer_input_backward() {
    token_wise(WorkKind::norm_backward, m());
    token_wise(WorkKind::activation_backward, input_width());
    product_backward(kind_->products.input_projection);
    product_backward(kind_->products.input_gate);
    token_wise(WorkKind::copy, m() + input_width());
  }
  // Of all layers, before them and behind their backward.
  LayerProducts::Sides inputs_projection() const { return layer_inputs_projection(model_); }
  void layer_inputs() {
    if (!model_.has_layer_inputs()) return;
    const double values = static_cast<double>(inputs_projection().n);
    multiply(WorkKind::matmul, inputs_projection(), head_rows_);
    add(WorkKind::norm, head_rows_ * values, 0, rows_ * values);
    add(WorkKind::embedding, head_rows_ * values, 0, rows_ * values);
    add(WorkKind::copy, head_rows_ * values, 0, 2 * rows_ * values);
    if (in_.zero == 3) gather(model_.unit_elements[kLayerInputsUnit]);
  }
  void layer_inputs_backward() {
    if (!model_.has_layer_inputs() || model_.adapted()) return;
    const double values = static_cast<double>(inputs_projection().n);
    multiply(WorkKind::matmul, inputs_projection(), head_rows_);
    multiply(WorkKind::matmul, inputs_projection(), head_rows_);
    multiply(WorkKind::weight_gradient, inputs_projection(), gradient_width(head_rows_));
    add(WorkKind::norm_backward, head_rows_ * values, 0, rows_ * values);
    add(WorkKind::embedding, head_rows_ * values, 0, rows_ * values);
    add(WorkKind::copy, head_rows_ * values, 0, 3 * rows_ * values);
    if (in_.zero == 3) gather(model_.unit_elements[kLayerInputsUnit]);
  }

  const KindWork* kind_of(int64_t layer) const {
    return &kinds_[kind_of_layer_.at(static_cast<size_t>(layer))];
  }
  // Layers that do the same are counted once, so many times.
  void forward_of_layers() {
    const auto slots = [&](int64_t layer) { return in_.recompute.kept_by_forward(layer).reset(kX); };
    for (int64_t layer = 0, end = 0; layer < in_.recompute.layers; layer = end) {
      while (end < in_.recompute.layers && slots(end) == slots(layer) && kind_of(end) == kind_of(layer))
        ++end;
      times_ = static_cast<double>(end - layer);
      kind_ = kind_of(layer);
      forward(/*has_o=*/false, slots(layer));
    }
    times_ = 1;
  }
  void backward_of_layers() {
    const RecomputePlan& plan = in_.recompute;
    const auto does_as = [&](int64_t begin, int64_t end, int64_t before) {
      for (int64_t layer = begin; layer < end; ++layer)
        if (plan.kept_by_forward(layer) != plan.kept_by_forward(layer - before) ||
            kind_of(layer) != kind_of(layer - before))
          return false;
      return true;
    };
    for (int64_t end = plan.layers; end > 0;) {
      const int64_t begin = plan.group_begin(end - 1), layers = end - begin;
      int64_t groups = 1;
      while (begin >= groups * layers && layers == plan.checkpoint_every &&
             does_as(begin, end, groups * layers))
        ++groups;
      times_ = static_cast<double>(groups);
      backward_of_group(begin, end);
      times_ = 1;
      end = begin - (groups - 1) * layers;
    }
  }

  void backward_of_group(int64_t begin, int64_t end) {
    const RecomputePlan& plan = in_.recompute;
    for (int64_t layer = begin; layer + 1 < end; ++layer) {
      kind_ = kind_of(layer);
      forward(plan.kept_by_forward(layer)[kO], plan.kept_by_rerun(layer));
    }
    for (int64_t layer = end - 1; layer >= begin; --layer) {
      SavedSlots slots = plan.kept_by_forward(layer);
      if (layer + 1 < end) slots |= plan.kept_by_rerun(layer);
      kind_ = kind_of(layer);
      backward(slots);
    }
  }

  void backward(const SavedSlots& slots) {
    gather_layer();
    if (!slots[kQkv]) project();
    if (!slots[kO]) attention_forward();
    if (!slots[kX1])
      residual_after_attention();
    else
      post_norm();
    token_wise(WorkKind::norm, m());
    route(slots[kGateUp]);
    if (!slots[kGateUp]) product(kind_->products.gate_up);
    if (!slots[kGateUp] && downs_again()) down();
    if (model_.has_layer_inputs()) {
      if (!slots[kGateUp]) post_norm();  // what the input was added to
      layer_input();
      layer_input_backward();
    }
    norms_beside_mlp();
    if (model_.experts_beside_mlp) {
      if (!slots[kGateUp]) product(kind_->products.shared_down);
      token_wise(WorkKind::norm_backward, 4 * m());
    }
    if (model_.post_norms) token_wise(WorkKind::norm_backward, 2 * m());
    token_wise(WorkKind::activation_backward, act_width());
    if (model_.experts > 0)  // dy by rows, then times the weights; act times d(act)
      token_wise(WorkKind::copy, 2 * rows_width() + 2 * act_width());
    product_backward(kind_->products.down);
    product_backward(kind_->products.gate_up);
    if (model_.experts > 0) product_backward(kind_->products.router);
    sum_rows();
    if (model_.shared_intermediate > 0) {
      share(slots[kGateUp]);
      for (const auto* sides :
           {&kind_->products.shared_down, &kind_->products.shared_gate_up, &kind_->products.shared_gate})
        if (sides->n > 0) product_backward(*sides);
      if (!model_.experts_beside_mlp)  // d(act) by the share too; d(normed) is added to
        token_wise(WorkKind::copy, static_cast<double>(model_.shared_intermediate) + 2 * m());
    }
    token_wise(WorkKind::copy, 2 * m());  // dy, and d(x)
    token_wise(WorkKind::norm_backward, m());
    product_backward(kind_->products.out);
    if (chunked()) send_qkv();
    // do, and o where it is not there by heads
    const int sent = !delta_net() && (chunked() || (slots[kO] && !slots[kOHeads])) ? 2 : 1;
    if (gate_width() > 0) token_wise(WorkKind::activation_backward, gate_width());
    if (delta_net()) token_wise(WorkKind::norm_backward, query_width());
    send(exchange(), messages(), static_cast<double>(sent * kind_->ulysses.do_to_heads));
    attend(WorkKind::attention_backward, 10);
    add_up_rounds(qkv_width(), 3 * kFloat_bytes);
    send(TrafficKind::ring, 2 * ring_calls(), static_cast<double>(kind_->ring.backward));
    send(exchange(), messages(), static_cast<double>(kind_->ulysses.dqkv_to_seq));
    token_wise(WorkKind::copy, qkv_width());  // dq, dk and dv are joined
    copy_shared_keys();
    if (exchanges())  // packed and, key by key, added up
      token_wise(WorkKind::copy, static_cast<double>(sent) * query_width() + 2 * qkv_width());
    token_wise(WorkKind::norm, m());
    if (turned_width() > 0) token_wise(WorkKind::rotation, turned_width());
    scale_queries();
    part_gates();
    if (normed_width() > 0) {  // what is normed is made again
      const double turned = query_width() + key_width() + gate_width();
      product({model_.hidden, model_.v_norm ? kind_->products.qkv.n : static_cast<int64_t>(turned)});
      token_wise(WorkKind::norm_backward, normed_width());
    }
    product_backward(kind_->products.qkv);
    token_wise(WorkKind::norm_backward, m());
  }

  void head() {
    const LayerProducts::Sides matrix{model_.hidden, model_.vocab};
    constexpr int64_t kCached_elements = int64_t{1} << 20;
    const bool cached = matrix.k * matrix.n <= kCached_elements;
    const WorkKind product = cached ? WorkKind::matmul : WorkKind::head_matmul;
    const WorkKind gradient = cached ? WorkKind::weight_gradient : WorkKind::head_weight_gradient;
    const auto vocabulary = static_cast<double>(model_.vocab);
    for (const auto& [kind, width] : {std::pair{WorkKind::norm, m()},
                                      {WorkKind::norm_backward, m()},
                                      {WorkKind::cross_entropy, vocabulary},
                                      {WorkKind::copy, 2 * m()}})
      add(kind, head_rows_ * width, 0, rows_ * width);
    if (model_.caps_logits) add(WorkKind::copy, head_rows_ * vocabulary, 0, 3 * rows_ * vocabulary);
    multiply(product, matrix, head_rows_);
    multiply(product, matrix, head_rows_);
    if (!model_.adapted()) multiply(gradient, matrix, gradient_width(head_rows_));
    if (model_.tiles == TileFormula::encoder) {
      const LayerProducts::Sides dense = head_dense(model_);
      multiply(WorkKind::matmul, dense, head_rows_);
      multiply(WorkKind::matmul, dense, head_rows_);
      multiply(WorkKind::weight_gradient, dense, gradient_width(head_rows_));
    }
    if (in_.zero == 3) gather(model_.unit_elements.back() + (model_.tied ? model_.unit_elements.front() : 0));
    if (in_.zero == 3) gather(model_.unit_elements.front());
  }

  double others_share() const { return static_cast<double>(in_.ranks - 1) / static_cast<double>(in_.ranks); }
  void gather(int64_t elements) {
    const auto bytes = static_cast<double>(elements * in_.tile_bytes);
    send(TrafficKind::gathered_parameters, 1, bytes * others_share());
    if (in_.offload.parameters != Offload::none)
      send(TrafficKind::offloaded_parameters, 1, bytes / static_cast<double>(in_.ranks));
  }
  void gather_layer() {
    if (in_.zero == 3) gather(kind_->unit_elements);
  }

  // ZeRO 2 and 3, and updates in backward, sum each micro-batch's gradients; ZeRO 0 and 1 those of the step.
  void sum_gradients(bool of_step) {
    const bool of_each = in_.zero >= 2 || in_.update_in_backward;
    if (of_step == of_each) return;
    const std::vector<int64_t>& units = trained_.model.unit_elements;
    const auto elements = static_cast<double>(sum_of(units));
    const double scatters = in_.zero == 0 ? 2 : 1;  // all-reduce: reduce-scatter and all-gather
    send(TrafficKind::summed_gradients, scatters * static_cast<double>(units.size()),
         scatters * elements * static_cast<double>(in_.reduce_bytes) * others_share());
  }

  void offload_activations() {
    if (!activations_leave(in_)) return;
    const std::vector<int64_t> leaving = leaving_bytes_of_layers(in_);
    const auto bytes = static_cast<double>(sum_of(leaving) * step_.accumulation);
    send(TrafficKind::offloaded_activations, static_cast<double>(leaving.size()), bytes);
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
        add(WorkKind::optimizer, of_unit, 0, of_unit);
      }
    } else {
      work_.host_optimizer_elements = stepped;
      send(TrafficKind::offloaded_gradients, 2 * static_cast<double>(units.size()),
           stepped * static_cast<double>(kFloat_bytes + in_.tile_bytes));
    }
    if (in_.offload.optimizer == Offload::disk) {
      // As shard/optimizer.h and shard/masters.h hold them: a tensor a unit each.
      const int64_t of_master = master_bytes(trained_);
      const int64_t of_element = in_.moments * in_.state_bytes + of_master;
      send(TrafficKind::offloaded_optimizer,
           static_cast<double>((in_.moments + (of_master > 0 ? 1 : 0)) * std::ssize(units)),
           stepped * static_cast<double>(of_element));
    }
    if (trained_.zero == 1 || trained_.zero == 2)
      send(TrafficKind::traded_parameters, static_cast<double>(units.size()),
           whole * static_cast<double>(in_.tile_bytes) * others_share());
  }

  const PlannedStep& step_;
  const ForecastInputs& in_;
  const ForecastInputs trained_;
  const ModelSizes& model_;
  const double rows_, tile_rows_, head_rows_;
  std::vector<KindWork> kinds_;
  std::vector<size_t> kind_of_layer_;
  const KindWork* kind_ = nullptr;  // of the layer that goes on
  double times_ = 1;
  StepWork work_;
};

}  // namespace

double matmul_parameters(const ModelSizes& model) {
  const double dense = model.tiles == TileFormula::encoder ? head_dense(model).elements() : 0;
  ForecastInputs inputs;
  inputs.model = model;
  double layers = 0;
  for (const ForecastInputs& kind : layer_kinds(inputs).inputs)
    layers += static_cast<double>(kind.model.layers) * LayerProducts(kind.model).elements();
  if (model.has_layer_inputs()) layers += layer_inputs_projection(model).elements();
  return layers + dense + LayerProducts::Sides{model.hidden, model.vocab}.elements();
}

double PlannedStep::tokens() const {
  return static_cast<double>(inputs.batch * inputs.tokens * accumulation * data_parallel());
}

double PlannedStep::model_flops() const {
  const double samples = static_cast<double>(inputs.batch * accumulation * data_parallel());
  const ModelSizes& model = inputs.model;
  const double a_token =
      model.adapted() ? 4 * matmul_parameters(model) + 6 * static_cast<double>(sum_of(model.adapter_elements))
                      : 6 * matmul_parameters(model);
  const AttentionHeads common = model.common_heads();
  const double of_states = delta_flops_per_token(model.delta_net, model.delta_layers);
  return (a_token + of_states) * tokens() +
         samples * attention_pairs.flops(common, model.full_heads.value_or(common));
}

StepWork step_work(const PlannedStep& step) {
  return Counter(step).run();
}

}  // namespace trireme
