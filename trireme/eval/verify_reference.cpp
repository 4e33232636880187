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

// What a rank has of a reference's tokens.
struct ReferenceShard {
  TokenBatch batch;
  at::Tensor positions;  // [s]: of each token of a sample
};

ReferenceShard shard_of(const ReferenceInputs& reference, Mesh& mesh) {
  ReferenceShard shard;
  const int64_t S = reference.input_ids.size(1);
  shard.batch.layout = {S, mesh.ulysses->size(), mesh.ring->size()};
  shard.batch.documents = reference.documents;
  const TokenSpans spans = shard.batch.layout.spans(mesh.sp->rank());
  const auto part_of = [&](const at::Tensor& whole) {
    std::vector<at::Tensor> pieces{whole.slice(1, 0, 0)};
    for (const TokenSpan& span : spans) pieces.push_back(whole.slice(1, span.begin, span.end));
    return at::cat(pieces, 1);
  };
  shard.batch.tokens = part_of(reference.input_ids);
  shard.batch.targets = part_of(reference.targets);
  shard.positions = part_of(at::arange(S, at::kLong).unsqueeze(0)).squeeze(0).contiguous();
  return shard;
}

// Of tokens that no mask leaves out. Collective.
Extremes compare_logits(Engine& engine, const ReferenceShard& shard, const ReferenceInputs& reference,
                        const SafetensorsEntry& reference_logits) {
  const int64_t s = shard.positions.size(0), S = reference.input_ids.size(1);
  const auto* position = shard.positions.const_data_ptr<int64_t>();
  Extremes extremes;
  engine.evaluate(shard.batch, [&](int64_t first_row, const at::Tensor& logits) {
    const at::Tensor ours = logits.detach().to(at::kCPU, at::kFloat);
    // This rank's rows run over [B * s], the file's over [B * S].
    for (int64_t row = first_row; row < first_row + ours.size(0);) {
      const int64_t sample = row / s, at_token = row % s;
      const int64_t most = std::min(s - at_token, first_row + ours.size(0) - row);
      int64_t count = 1;
      while (count < most && position[at_token + count] == position[at_token] + count) ++count;
      at::Tensor shard_rows = ours.slice(0, row - first_row, row - first_row + count);
      at::Tensor theirs = float_rows(reference_logits, ours.size(1), sample * S + position[at_token], count);
      if (reference.attention_mask.defined()) {
        const at::Tensor attended =
            reference.attention_mask[sample].narrow(0, position[at_token], count).ne(0).nonzero().squeeze(1);
        shard_rows = shard_rows.index_select(0, attended);
        theirs = theirs.index_select(0, attended);
      }
      extremes.add(shard_rows, theirs);
      row += count;
    }
  });
  return extremes;
}

// After accumulate_gradients. Collective.
void compare_with_file(Engine& engine, const SafetensorsFile& file, std::vector<ComparedTensor>& compared) {
  std::set<std::string> known;
  for (const TiedName& second : engine.layout().tied_names) known.insert("grad." + second.name);
  for (size_t unit = 0; unit < engine.layout().trained().size(); ++unit)
    compare_gradients(
        engine.layout().trained()[unit],
        engine.unit_gradient(static_cast<int>(unit)).to(at::kCPU, at::kFloat),
        [&](const ParameterSpec& spec) {
          const std::string name = "grad." + spec.name;
          known.insert(name);
          if (spec.stays && file.find(name) == nullptr) return at::zeros(spec.shape);
          return float_rows(float_entry(file, name, spec.shape), spec.elements, 0, 1).view(spec.shape);
        },
        compared);
  for (const auto& [name, entry] : file.entries())
    if (name.starts_with("grad.") && !known.contains(name))
      throw DataError(cat(entry.describe(), ": the model has no such parameter"));
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
  const int64_t B = reference.input_ids.size(0), S = reference.input_ids.size(1);
  EngineOptions planned = options;
  planned.planned_batch = {B, S};
  const auto engine = assemble(world, model_dir, planned);
  const SafetensorsEntry& logits = float_entry(file, "logits", {B, S, engine->config().vocab_size});
  const SafetensorsEntry& loss_entry = file.at("loss");
  if (loss_entry.dtype != "F32" || loss_entry.elements != 1)
    throw DataError(cat(loss_entry.describe(), ": expected one F32"));
  float reference_loss = 0;
  loss_entry.read(0, &reference_loss, sizeof(reference_loss));

  const ReferenceShard shard = shard_of(reference, engine->mesh());
  std::vector<ComparedTensor> compared{{"loss"}, {"logits"}};
  compared[1].extremes = compare_logits(*engine, shard, reference, logits);
  const StepResult step = engine->accumulate_gradients({shard.batch});
  compared[0].extremes.add(step.loss, reference_loss);
  compare_with_file(*engine, file, compared);

  VerifyResult result;
  Agreement agreement = engine->agreement();
  // Logits are spread over ranks; gradients are equal on all, or the worst of them counts.
  result.tensors = errors_over_ranks(compared, agreement);
  result.loss = step.loss;
  result.reference_loss = reference_loss;
  result.tolerance = tolerance;
  result.ranks = world.size();
  result.batch = B;
  result.sequence_tokens = S;
  result.description = engine->description();
  return result;
}

}  // namespace trireme
