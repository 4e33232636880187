#include "trireme/eval/verify_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include <ATen/ATen.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/comm/collectives.h"
#include "trireme/engine/assemble.h"

namespace trireme {
namespace {

// Of the whole tensor, maybe seen in parts and on several ranks.
struct Extremes {
  double difference = 0;
  double largest = 0;

  void add(const at::Tensor& ours, const at::Tensor& reference) {
    if (reference.numel() == 0) return;
    const double worst = (ours - reference).abs().max().item<double>();
    difference = std::max(difference, std::isfinite(worst) ? worst : std::numeric_limits<double>::infinity());
    largest = std::max(largest, reference.abs().max().item<double>());
  }
  double error() const {
    if (difference == 0) return 0;
    return largest > 0 ? difference / largest : std::numeric_limits<double>::infinity();
  }
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += cat(text.empty() ? "" : ", ", extent);
  return cat("[", text, "]");
}

at::Tensor integers(const SafetensorsEntry& entry) {
  const bool wide = entry.dtype == "I64";
  if (!wide && entry.dtype != "I32") throw DataError(cat(entry.describe(), ": expected I64"));
  at::Tensor values = at::empty(entry.shape, wide ? at::kLong : at::kInt);
  if (entry.bytes > 0) std::memcpy(values.mutable_data_ptr(), entry.data, static_cast<size_t>(entry.bytes));
  return values.to(at::kLong);
}

// Rows [first, first + count) of the entry seen as [rows, width], fp32.
at::Tensor float_rows(const SafetensorsEntry& entry, int64_t width, int64_t first, int64_t count) {
  at::Tensor values = at::empty({count, width}, at::kFloat);
  if (count * width > 0)
    std::memcpy(values.mutable_data_ptr(), entry.data + first * width * 4,
                static_cast<size_t>(count * width * 4));
  return values;
}

const SafetensorsEntry& float_entry(const SafetensorsFile& file, const std::string& name,
                                    const std::vector<int64_t>& shape) {
  const SafetensorsEntry& entry = file.at(name);
  if (entry.dtype != "F32" || entry.shape != shape)
    throw DataError(cat(entry.describe(), ": the model has F32 ", shape_text(shape)));
  return entry;
}

// Of the shape of input_ids; undefined where the file has none.
at::Tensor optional_integers(const SafetensorsFile& file, const char* name, const at::Tensor& input_ids) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) return {};
  at::Tensor values = integers(*entry);
  if (values.dim() == 1) values = values.unsqueeze(0);
  if (values.size(-1) != input_ids.size(1) || (values.size(0) != 1 && values.size(0) != input_ids.size(0)))
    throw DataError(
        cat(entry->describe(), ": expected the shape of input_ids, ", shape_text(input_ids.sizes().vec())));
  return values.expand_as(input_ids).contiguous();
}

// The documents of one sample: those of its positions, and every padding token by itself.
Documents documents_of_row(const at::Tensor& positions, const at::Tensor& attention_mask, int64_t row,
                           int64_t tokens) {
  std::vector<int64_t> plain(static_cast<size_t>(tokens));
  std::iota(plain.begin(), plain.end(), 0);
  if (positions.defined()) {
    const at::Tensor of_row = positions[row].contiguous();
    const auto* values = of_row.const_data_ptr<int64_t>();
    plain.assign(values, values + tokens);
  }
  if (!attention_mask.defined()) return Documents::of_positions(plain);
  // Positions of padding say nothing, and those after it count from its end, whatever the file has.
  const at::Tensor of_row = attention_mask[row].contiguous();
  const auto* seen = of_row.const_data_ptr<int64_t>();
  for (int64_t token = 0; token < tokens; ++token) {
    const bool begins = seen[token] == 0 || token == 0 || seen[token - 1] == 0;
    auto& position = plain[static_cast<size_t>(token)];
    if (begins || (positions.defined() && position == 0))
      position = 0;
    else
      position = plain[static_cast<size_t>(token) - 1] + 1;
  }
  return Documents::of_positions(plain);
}

struct Reference {
  at::Tensor input_ids;              // [B, S]
  at::Tensor targets;                // [B, S], shifted
  std::vector<Documents> documents;  // empty: each sample is one
  at::Tensor attention_mask;         // [B, S], or undefined
  bool shifted = true;               // targets are the labels of the next token
};

// A document's first token is no one's target, and padding has none.
void check_no_target_crosses(const Reference& reference, const SafetensorsFile& file) {
  for (size_t row = 0; row < reference.documents.size(); ++row) {
    const at::Tensor targets = reference.targets[static_cast<int64_t>(row)].contiguous();
    const auto* target = targets.const_data_ptr<int64_t>();
    if (reference.attention_mask.defined() && !reference.shifted &&
        reference.targets[static_cast<int64_t>(row)]
            .ne(kIgnoredLabel)
            .logical_and(reference.attention_mask[static_cast<int64_t>(row)].eq(0))
            .any()
            .item<bool>())
      throw DataError(
          cat(file.at("labels").describe(), ": sample ", row, " has a label at padding; expected -100"));
    const std::vector<int64_t>& ends = reference.documents[row].cu_seqlens();
    for (size_t i = 1; i < ends.size(); ++i)
      if (reference.shifted && target[ends[i] - 1] != kIgnoredLabel)
        throw DataError(cat(file.at("labels").describe(), ": sample ", row, " has a label at token ", ends[i],
                            ", the first of a document or of padding; expected -100 there"));
  }
}

// Without position_ids a mask says where one document lies: holes in it, which tokens behind them would look through,
// are another mask than Trireme has; and padding before it moves positions that a model has a table for.
void check_padding_is_at_an_end(const at::Tensor& attention_mask, const ModelConfig& config,
                                const SafetensorsFile& file) {
  const at::Tensor seen = attention_mask.ne(0).to(at::kLong);
  const at::Tensor changes = seen.diff(1, 1).ne(0).sum(1);
  const bool hole = changes.gt(2).any().item<bool>() ||
                    changes.eq(2).logical_and(seen.select(1, 0).eq(1)).any().item<bool>();
  const bool before = !config.rotates() && seen.select(1, 0).eq(0).any().item<bool>();
  if (hole || before)
    throw DataError(cat(file.at("attention_mask").describe(), ": padding ",
                        hole ? "within a document" : "before a document of a model with learned positions",
                        "; give position_ids, which say where documents begin, or pad at the end"));
}

Reference read_inputs(const SafetensorsFile& file, const ModelConfig& config) {
  Reference reference;
  reference.input_ids = integers(file.at("input_ids"));
  const at::Tensor labels = integers(file.at("labels"));
  if (reference.input_ids.dim() != 2 || reference.input_ids.numel() == 0)
    throw DataError(cat(file.at("input_ids").describe(), ": expected [B, S] with at least one token"));
  if (labels.sizes() != reference.input_ids.sizes())
    throw DataError(cat(file.at("labels").describe(), ": expected the shape of input_ids, ",
                        shape_text(reference.input_ids.sizes().vec())));
  const auto check_ids = [&](const at::Tensor& ids, const char* name, bool may_be_ignored) {
    at::Tensor wrong = ids.lt(0).logical_or(ids.ge(config.vocab_size));
    if (may_be_ignored) wrong = wrong.logical_and(ids.ne(kIgnoredLabel));
    if (wrong.any().item<bool>())
      throw DataError(cat(file.at(name).describe(), ": id ", ids.masked_select(wrong)[0].item<int64_t>(),
                          " is outside the model's vocabulary of ", config.vocab_size));
  };
  check_ids(reference.input_ids, "input_ids", false);
  check_ids(labels, "labels", true);
  const int64_t S = labels.size(1);
  reference.shifted = config.shifts_labels();
  if (reference.shifted) {
    reference.targets = at::full_like(labels, kIgnoredLabel);
    reference.targets.slice(1, 0, S - 1).copy_(labels.slice(1, 1, S));
  } else {
    reference.targets = labels;
  }
  const at::Tensor positions = optional_integers(file, "position_ids", reference.input_ids);
  reference.attention_mask = optional_integers(file, "attention_mask", reference.input_ids);
  if (!positions.defined() && !reference.attention_mask.defined()) return reference;
  if (!positions.defined()) check_padding_is_at_an_end(reference.attention_mask, config, file);
  for (int64_t row = 0; row < labels.size(0); ++row)
    reference.documents.push_back(documents_of_row(positions, reference.attention_mask, row, S));
  check_no_target_crosses(reference, file);
  return reference;
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
  const Reference reference = read_inputs(file, read_model_config(model_dir));
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
  const auto mine = [&](const at::Tensor& whole) {
    std::vector<at::Tensor> pieces{whole.slice(1, 0, 0)};
    for (const TokenSpan& span : spans) pieces.push_back(whole.slice(1, span.begin, span.end));
    return at::cat(pieces, 1);
  };
  batch.tokens = mine(reference.input_ids);
  batch.targets = mine(reference.targets);
  // Of this rank's token t of a sample: where it lies in the sample.
  const at::Tensor places = mine(at::arange(S, at::kLong).unsqueeze(0)).squeeze(0).contiguous();

  std::vector<std::string> names{"logits"};
  std::vector<Extremes> extremes(1);
  engine->evaluate(batch, [&](int64_t first_row, const at::Tensor& logits) {
    const at::Tensor ours = logits.detach().to(at::kCPU, at::kFloat);
    // Rows of this rank run over [B * s]; those of the file over [B * S].
    const auto* place = places.const_data_ptr<int64_t>();
    for (int64_t row = first_row; row < first_row + ours.size(0);) {
      const int64_t sample = row / s, at_token = row % s;
      const int64_t most = std::min(s - at_token, first_row + ours.size(0) - row);
      int64_t count = 1;
      while (count < most && place[at_token + count] == place[at_token] + count) ++count;
      at::Tensor own = ours.slice(0, row - first_row, row - first_row + count);
      at::Tensor theirs = float_rows(reference_logits, V, sample * S + place[at_token], count);
      if (reference.attention_mask.defined()) {
        const at::Tensor seen =
            reference.attention_mask[sample].narrow(0, place[at_token], count).ne(0).nonzero().squeeze(1);
        own = own.index_select(0, seen);
        theirs = theirs.index_select(0, seen);
      }
      extremes[0].add(own, theirs);
      row += count;
    }
  });
  const StepResult step = engine->accumulate_gradients({batch});
  std::map<std::string, bool> compared;
  for (size_t unit = 0; unit < engine->layout().units.size(); ++unit) {
    const at::Tensor unit_gradient = engine->unit_gradient(static_cast<int>(unit));
    const size_t first = extremes.size();
    double unit_largest = 0;
    for (const ParameterSpec& spec : engine->layout().units[unit].parameters) {
      const std::string name = "grad." + spec.name;
      const SafetensorsEntry& entry = float_entry(file, name, spec.shape);
      const at::Tensor ours = parameter_view(unit_gradient, spec).to(at::kCPU, at::kFloat).reshape({-1});
      extremes.emplace_back();
      extremes.back().add(ours, float_rows(entry, spec.elements, 0, 1).reshape({-1}));
      unit_largest = std::max(unit_largest, extremes.back().largest);
      names.push_back(name);
      compared[name] = true;
    }
    // What is zero but for rounding is compared with its neighbours.
    const std::vector<ParameterSpec>& parameters = engine->layout().units[unit].parameters;
    for (size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].gradient_vanishes) extremes[first + i].largest = unit_largest;
  }
  for (const auto& [name, entry] : file.entries())
    if (name.starts_with("grad.") && !compared.contains(name) &&
        !(engine->layout().tied && name == "grad.lm_head.weight"))
      throw DataError(cat(entry.describe(), ": the model has no such parameter"));

  // Logits are spread over ranks; gradients are equal on all, or the worst of them counts.
  at::Tensor flat = at::empty({static_cast<int64_t>(extremes.size()), 2}, at::kDouble);
  for (size_t i = 0; i < extremes.size(); ++i) {
    flat[static_cast<int64_t>(i)][0] = extremes[i].difference;
    flat[static_cast<int64_t>(i)][1] = extremes[i].largest;
  }
  at::Tensor everywhere = flat.to(options.device);
  all_reduce_max(*engine->mesh().all, everywhere);
  flat = everywhere.to(at::kCPU);

  VerifyResult result;
  result.loss = step.loss;
  float reference_loss = 0;
  std::memcpy(&reference_loss, loss_entry.data, sizeof(reference_loss));
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
    const Extremes worst{flat[static_cast<int64_t>(i)][0].item<double>(),
                         flat[static_cast<int64_t>(i)][1].item<double>()};
    result.tensors.push_back({names[i], worst.error(), worst.largest});
  }
  std::stable_sort(result.tensors.begin(), result.tensors.end(),
                   [](const TensorError& a, const TensorError& b) { return a.error > b.error; });
  return result;
}

}  // namespace trireme
