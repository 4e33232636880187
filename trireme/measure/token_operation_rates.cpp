#include "trireme/measure/token_operation_rates.h"

#include "trireme/kernels/token_ops.h"
#include "trireme/model/embedding.h"
#include "trireme/shard/gradient_store.h"
#include "trireme/shard/optimizer.h"

namespace trireme {
namespace {

class OperationTimer {
 public:
  OperationTimer(const CallTimer& timer, at::ScalarType dtype, Rates& rates)
      : timer_(timer),
        rates_(rates),
        options_(at::TensorOptions(timer.device()).dtype(dtype)),
        wide_(options_.dtype(at::kFloat)) {}

  void run() {
    for (const int64_t rows : sizes({32, 512, 8192}, 65536)) {
      norms(rows);
      rotation(rows);
      activation(rows);
      embedding(rows);
      copies(rows);
    }
    for (const int64_t rows : sizes({16, 128, 512}, 2048)) cross_entropies(rows);
    for (const int64_t shift : sizes({14, 18, 22, 24}, 27)) optimizer(int64_t{1} << shift);
  }

 private:
  static constexpr int64_t kHidden = 512, kIntermediate = 1408, kHeads = 12, kHeadWidth = 64,
                           kVocabulary = 32000;

  // A GPU, which is slower at what does not fill it, gets one size more.
  std::vector<int64_t> sizes(std::vector<int64_t> of_all, int64_t of_gpu) const {
    if (timer_.device().is_cuda()) of_all.push_back(of_gpu);
    return of_all;
  }

  void add(WorkKind kind, int64_t values, double seconds) {
    const auto amount = static_cast<double>(values);
    rates_[kind].points.push_back({amount, 0, amount / seconds});
  }
  // No operation here is faster or slower by its values.
  at::Tensor values(at::IntArrayRef sizes) const { return at::ones(sizes, options_); }

  void norms(int64_t rows) {
    constexpr double kEpsilon = 1e-5;
    const at::Tensor x = values({rows, kHidden}), dy = values({rows, kHidden}), weight = values({kHidden});
    at::Tensor dx = values({rows, kHidden}), dweight = at::zeros({kHidden}, wide_);
    const auto dtype = x.scalar_type();
    add(WorkKind::norm, x.numel(), timer_.seconds([&] { rms_norm(x, weight, kEpsilon, dtype); }));
    add(WorkKind::norm_backward, x.numel(),
        timer_.seconds([&] { rms_norm_backward(dy, x, weight, kEpsilon, dx, dweight); }));
  }

  // Forward, and backward of heads without norms, in turns: their mean.
  void rotation(int64_t rows) {
    RotaryHeads rotary;
    rotary.query_heads = 8;
    rotary.rotated_heads = kHeads;
    rotary.cos = at::rand({rows, kHeadWidth / 2}, wide_);
    rotary.sin = at::rand({rows, kHeadWidth / 2}, wide_);
    const at::Tensor qk = values({rows, kHeads, kHeadWidth});
    at::Tensor none, also_none;
    const std::vector<double> seconds =
        timer_.seconds_in_turns({[&] { rotate_heads(qk, rotary, qk); },
                                 [&] { rotate_heads_backward(qk, rotary, {}, qk, none, also_none); }});
    add(WorkKind::rotation, qk.numel(), (seconds[0] + seconds[1]) / 2);
  }

  void activation(int64_t rows) {
    at::Tensor gate_up = values({rows, 2 * kIntermediate});
    // Backward is in place: without a gradient its values stay finite however often it is called.
    const at::Tensor kept = gate_up.clone(), dact = at::zeros({rows, kIntermediate}, options_);
    add(WorkKind::activation, dact.numel(), timer_.seconds([&] { glu(GluGate::silu, kept); }));
    add(WorkKind::activation_backward, dact.numel(),
        timer_.seconds([&] { glu_backward(GluGate::silu, dact, gate_up); }));
  }

  // Look-up and gradient, in turns: their mean.
  void embedding(int64_t rows) {
    const at::Tensor words = values({kVocabulary, kHidden}),
                     gradient = at::zeros({kVocabulary, kHidden}, wide_);
    const at::Tensor tokens = at::randint(kVocabulary, {rows}, options_.dtype(at::kLong));
    at::Tensor x = values({rows, kHidden});
    const std::vector<double> seconds =
        timer_.seconds_in_turns({[&] { at::index_select_out(x, words, 0, tokens); },
                                 [&] { add_word_gradients(gradient, std::nullopt, tokens, x); }});
    add(WorkKind::embedding, x.numel(), (seconds[0] + seconds[1]) / 2);
  }

  // Between two of many buffers, so that both are as cold as a layer's.
  void copies(int64_t rows) {
    std::vector<at::Tensor> buffers;
    buffers.reserve(8);
    for (int i = 0; i < 8; ++i) buffers.push_back(values({rows, kHidden}));
    size_t turn = 0;
    add(WorkKind::copy, rows * kHidden, timer_.seconds([&] {
      const at::Tensor& to = buffers[turn++ % buffers.size()];
      to.copy_(buffers[(turn + 3) % buffers.size()]);
    }));
  }

  void cross_entropies(int64_t rows) {
    at::Tensor logits = values({rows, kVocabulary}), loss = at::zeros({rows}, wide_);
    const at::Tensor targets = at::randint(kVocabulary, {rows}, options_.dtype(at::kLong));
    add(WorkKind::cross_entropy, logits.numel(),
        timer_.seconds([&] { cross_entropy(logits, targets, loss, 1.0); }));
  }

  // A step sums the gradients' squares, clips, steps, and rounds the masters where values are narrow.
  void optimizer(int64_t elements) {
    const FlatUnit unit{"unit", elements, {{.elements = elements, .name = "weight", .shape = {elements}}}};
    const OptimizerKind& kind = find_optimizer("adamw_torch");
    OptimizerSettings settings;
    settings.device = timer_.device();
    const auto adamw = kind.make(kind, {unit}, settings);
    at::Tensor gradient = at::ones({elements}, wide_);
    const at::Tensor narrow = values({elements});
    // As masters lie where nothing is offloaded.
    const MasterShare master =
        narrow.scalar_type() == at::kBFloat16
            ? MasterShare{{}, at::zeros({elements}, options_.dtype(at::kShort)), narrow}
            : MasterShare{at::ones({elements}, wide_), {}, {}};
    StepNumbers numbers{1e-6, 0.5, 1};
    add(WorkKind::optimizer, elements, timer_.seconds([&] {
      sum_of_squares(gradient);
      adamw->step(0, master, gradient, numbers);
      ++numbers.steps;
    }));
  }

  const CallTimer& timer_;
  Rates& rates_;
  const at::TensorOptions options_, wide_;
};

}  // namespace

void measure_token_operation_rates(const CallTimer& timer, at::ScalarType dtype, Rates& rates) {
  OperationTimer(timer, dtype, rates).run();
}

}  // namespace trireme
