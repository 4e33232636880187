#include "trireme/eval/verify_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/reference_inputs.h"
#include "trireme/eval/tensor_extremes.h"
#include "trireme/model/unit_weights.h"

namespace trireme {
namespace {

// Rows [first, first + count) of the entry seen as [rows, width], fp32.
at::Tensor float_rows(const SafetensorsEntry& entry, int64_t width, int64_t first, int64_t count) {
  at::Tensor values = at::empty({count, width}, at::kFloat);
  entry.read(first * width * 4, values.mutable_data_ptr(), count * width * 4);
  return values;
}

const SafetensorsEntry& float_entry(const SafetensorsFile& file, const std::string& name,
                                    const std::vector<int64_t>& shape) {
  const SafetensorsEntry& entry = file.at(name);
  if (entry.dtype != "F32" || entry.shape != shape)
    throw DataError(cat(entry.describe(), ": the model has F32 ", at::IntArrayRef(shape)));
  return entry;
}

}  // namespace

bool VerifyResult::passed() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const TensorError& t) { return t.error <= tolerance; });
}

Json VerifyResult::to_json() const {
  Json rows = Json::array();
  for (const TensorError& tensor : tensors) {
    // JSON has no infinity.
    Json error = std::isfinite(tensor.error) ? Json(tensor.error) : Json("inf");
    rows.push_back({{"name", tensor.name}, {"error", error}, {"largest", tensor.largest}});
  }
  return {{"passed", passed()},
          {"tolerance", tolerance},
          {"loss", loss},
          {"reference_loss", reference_loss},
          {"ranks", ranks},
          {"batch", batch},
          {"sequence_tokens", sequence_tokens},
          {"engine", description},
          {"tensors", rows}};
}

std::string VerifyResult::table(int rows) const {
  std::string text = cat("engine   ", description, "\ninput    ", batch, " x ", sequence_tokens,
                         " tokens over ", ranks, ranks == 1 ? " rank\n" : " ranks\n");
  char line[512];
  std::snprintf(line, sizeof(line), "loss     %.7f, reference %.7f\n", loss, reference_loss);
  text += line;
  text += "   error      largest    tensor\n";
  int shown = 0;
  for (const TensorError& tensor : tensors) {
    if (shown++ == rows) break;
    std::snprintf(line, sizeof(line), "   %.2e   %.2e   %s\n", tensor.error, tensor.largest,
                  tensor.name.c_str());
    text += line;
  }
  const auto wrong = std::count_if(tensors.begin(), tensors.end(),
                                   [&](const TensorError& t) { return !(t.error <= tolerance); });
  std::snprintf(line, sizeof(line), "%s: %zu tensors, tolerance %.1e of each one's largest entry",
                passed() ? "PASSED" : "FAILED", tensors.size(), tolerance);
  text += line;
  return text + (passed() ? "\n" : cat(", ", wrong, " beyond it\n"));
}

VerifyResult verify_reference(World& world, const std::filesystem::path& model_dir,
                              const std::filesystem::path& reference_path, const EngineOptions& options,
                              double tolerance) {
  const at::NoGradGuard no_grad;
  const SafetensorsFile file(reference_path);
  const ReferenceInputs reference = read_reference_inputs(file, read_model_config(model_dir));
  EngineOptions planned = options;
  planned.planned_batch = {reference.input_ids.size(0), reference.input_ids.size(1)};
  const auto engine = assemble(world, model_dir, planned);
  const ModelConfig& config = engine->config();
  const int64_t B = reference.input_ids.size(0), S = reference.input_ids.size(1), V = config.vocab_size;
  const SafetensorsEntry& reference_logits = float_entry(file, "logits", {B, S, V});
  const SafetensorsEntry& loss_entry = file.at("loss");
  if (loss_entry.dtype != "F32" || loss_entry.elements != 1)
    throw DataError(cat(loss_entry.describe(), ": expected one F32"));

  Group& sp = *engine->mesh().sp;
  TokenBatch batch;
  batch.layout = {S, engine->mesh().ulysses->size(), engine->mesh().ring->size()};
  batch.documents = reference.documents;
  const TokenSpans spans = batch.layout.spans(sp.rank());
  const int64_t s = size_of(spans);
  const auto shard_of = [&](const at::Tensor& whole) {
    std::vector<at::Tensor> pieces{whole.slice(1, 0, 0)};
    for (const TokenSpan& span : spans) pieces.push_back(whole.slice(1, span.begin, span.end));
    return at::cat(pieces, 1);
  };
  batch.tokens = shard_of(reference.input_ids);
  batch.targets = shard_of(reference.targets);
  // For each of this rank's tokens of a sample: its position in the sample.
  const at::Tensor positions = shard_of(at::arange(S, at::kLong).unsqueeze(0)).squeeze(0).contiguous();

  std::vector<std::string> names{"logits"};
  std::vector<Extremes> extremes(1);
  engine->evaluate(batch, [&](int64_t first_row, const at::Tensor& logits) {
    const at::Tensor ours = logits.detach().to(at::kCPU, at::kFloat);
    // This rank's rows run over [B * s], the file's over [B * S].
    const auto* position = positions.const_data_ptr<int64_t>();
    for (int64_t row = first_row; row < first_row + ours.size(0);) {
      const int64_t sample = row / s, at_token = row % s;
      const int64_t most = std::min(s - at_token, first_row + ours.size(0) - row);
      int64_t count = 1;
      while (count < most && position[at_token + count] == position[at_token] + count) ++count;
      at::Tensor shard_rows = ours.slice(0, row - first_row, row - first_row + count);
      at::Tensor theirs = float_rows(reference_logits, V, sample * S + position[at_token], count);
      if (reference.attention_mask.defined()) {
        const at::Tensor attended =
            reference.attention_mask[sample].narrow(0, position[at_token], count).ne(0).nonzero().squeeze(1);
        shard_rows = shard_rows.index_select(0, attended);
        theirs = theirs.index_select(0, attended);
      }
      extremes[0].add(shard_rows, theirs);
      row += count;
    }
  });
  const StepResult step = engine->accumulate_gradients({batch});
  std::set<std::string> known;
  for (const TiedName& second : engine->layout().tied_names) known.insert("grad." + second.name);
  for (size_t unit = 0; unit < engine->layout().units.size(); ++unit) {
    const at::Tensor unit_gradient = engine->unit_gradient(static_cast<int>(unit));
    const size_t first = extremes.size();
    for (const ParameterSpec& spec : engine->layout().units[unit].parameters) {
      const std::string name = "grad." + spec.name;
      const SafetensorsEntry& entry = float_entry(file, name, spec.shape);
      const at::Tensor ours = parameter_view(unit_gradient, spec).to(at::kCPU, at::kFloat).reshape({-1});
      extremes.emplace_back();
      extremes.back().add(ours, float_rows(entry, spec.elements, 0, 1).reshape({-1}));
      names.push_back(name);
      known.insert(name);
    }
    compare_vanishing_with_unit(engine->layout().units[unit].parameters, &extremes[first]);
  }
  for (const auto& [name, entry] : file.entries())
    if (name.starts_with("grad.") && !known.contains(name))
      throw DataError(cat(entry.describe(), ": the model has no such parameter"));

  // Logits are spread over ranks; gradients are equal on all, or the worst of them counts.
  std::vector<double> worst;
  for (const Extremes& of_tensor : extremes)
    worst.insert(worst.end(), {of_tensor.difference, of_tensor.largest});
  worst = engine->agreement().largest(worst);

  VerifyResult result;
  result.loss = step.loss;
  float reference_loss = 0;
  loss_entry.read(0, &reference_loss, sizeof(reference_loss));
  result.reference_loss = reference_loss;
  result.tolerance = tolerance;
  result.ranks = sp.size();
  result.batch = B;
  result.sequence_tokens = S;
  result.description = engine->description();
  Extremes loss;
  loss.add(at::full({1}, step.loss, at::kDouble), at::full({1}, result.reference_loss, at::kDouble));
  result.tensors.push_back({"loss", loss.error(), loss.largest});
  for (size_t i = 0; i < names.size(); ++i) {
    const Extremes of_tensor{worst[2 * i], worst[2 * i + 1]};
    result.tensors.push_back({names[i], of_tensor.error(), of_tensor.largest});
  }
  std::stable_sort(result.tensors.begin(), result.tensors.end(),
                   [](const TensorError& a, const TensorError& b) { return a.error > b.error; });
  return result;
}

}  // namespace trireme
