#include "trireme/eval/reference_inputs.h"

#include <numeric>

#include "trireme/base/error.h"
#include "trireme/data/token_batch.h"

namespace trireme {
namespace {

at::Tensor integers(const SafetensorsEntry& entry) {
  const bool wide = entry.dtype == "I64";
  if (entry.shape.size() > 2) throw DataError(cat(entry.describe(), ": expected [B, S] or [S]"));
  if (!wide && entry.dtype != "I32") throw DataError(cat(entry.describe(), ": expected I64"));
  at::Tensor values = at::empty(entry.shape, wide ? at::kLong : at::kInt);
  entry.read(0, values.mutable_data_ptr(), entry.bytes);
  return values.to(at::kLong);
}

// An optional tensor with the shape of input_ids; undefined if the file has none.
at::Tensor optional_integers(const SafetensorsFile& file, const char* name, const at::Tensor& input_ids) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) return {};
  at::Tensor values = integers(*entry);
  if (values.dim() == 1) values = values.unsqueeze(0);
  if (values.size(-1) != input_ids.size(1) || (values.size(0) != 1 && values.size(0) != input_ids.size(0)))
    throw DataError(cat(entry->describe(), ": expected the shape of input_ids, ", input_ids.sizes()));
  return values.expand_as(input_ids).contiguous();
}

// The documents of one sample: those that its positions give, and one for every padding token.
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
  // Ignores positions of padding. Positions after padding count from its end, whatever the file has.
  const at::Tensor of_row = attention_mask[row].contiguous();
  const auto* attended = of_row.const_data_ptr<int64_t>();
  for (int64_t token = 0; token < tokens; ++token) {
    const bool begins = attended[token] == 0 || token == 0 || attended[token - 1] == 0;
    auto& position = plain[static_cast<size_t>(token)];
    if (begins || (positions.defined() && position == 0))
      position = 0;
    else
      position = plain[static_cast<size_t>(token) - 1] + 1;
  }
  return Documents::of_positions(plain);
}

// Throws where a document's first token is a target, or padding has one.
void check_no_target_crosses(const ReferenceInputs& reference, const SafetensorsFile& file) {
  for (size_t row = 0; row < reference.documents.size(); ++row) {
    const at::Tensor targets = reference.targets[static_cast<int64_t>(row)].contiguous();
    const auto* target = targets.const_data_ptr<int64_t>();
    if (reference.attention_mask.defined() && !reference.shifted &&
        targets.ne(kIgnoredLabel)
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

// Without position_ids the mask must describe one document. Trireme has no mask with holes through which
// later tokens look, and padding before the document would shift positions that a model looks up in a table.
void check_padding_is_at_an_end(const at::Tensor& attention_mask, const ModelConfig& config,
                                const SafetensorsFile& file) {
  const at::Tensor attended = attention_mask.ne(0).to(at::kLong);
  const at::Tensor changes = attended.diff(1, 1).ne(0).sum(1);
  const bool hole = changes.gt(2).any().item<bool>() ||
                    changes.eq(2).logical_and(attended.select(1, 0).eq(1)).any().item<bool>();
  const bool before = !config.rotates && attended.select(1, 0).eq(0).any().item<bool>();
  if (hole || before)
    throw DataError(cat(file.at("attention_mask").describe(), ": padding ",
                        hole ? "within a document" : "before a document of a model with learned positions",
                        "; give position_ids, which say where documents begin, or pad at the end"));
}

}  // namespace

ReferenceInputs read_reference_inputs(const SafetensorsFile& file, const ModelConfig& config) {
  ReferenceInputs reference;
  reference.input_ids = integers(file.at("input_ids"));
  const at::Tensor labels = integers(file.at("labels"));
  if (reference.input_ids.dim() != 2 || reference.input_ids.numel() == 0)
    throw DataError(cat(file.at("input_ids").describe(), ": expected [B, S] with at least one token"));
  if (labels.sizes() != reference.input_ids.sizes())
    throw DataError(cat(file.at("labels").describe(), ": expected the shape of input_ids, ",
                        reference.input_ids.sizes()));
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
  for (int64_t row = 0; row < labels.size(0); ++row) try {
      reference.documents.push_back(documents_of_row(positions, reference.attention_mask, row, S));
    } catch (const DataError& error) {
      throw DataError(cat(file.path().string(), ": sample ", row, ": ", error.what()));
    }
  check_no_target_crosses(reference, file);
  return reference;
}

}  // namespace trireme
