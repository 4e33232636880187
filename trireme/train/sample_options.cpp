#include "trireme/train/sample_options.h"

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/json.h"
#include "trireme/tokenizer/added_tokens.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

fs::path tokenizer_of(const fs::path& model_dir) {
  return model_dir / "tokenizer.json";
}

int64_t mask_token_of(const fs::path& model_dir) {
  if (const std::optional<int64_t> found = find_mask_token(model_dir)) return *found;
  const fs::path file = tokenizer_of(model_dir);
  throw ConfigError(
      cat(file.string(),
          is_there(file) ? ": none of its added_tokens is [MASK] or <mask>" : ": there is no such file",
          "; give the id of the token that stands for masked ones with --mask_token_id"));
}

void refuse_for_decoder(bool given, const char* flag) {
  if (given)
    throw ConfigError(cat("--", flag,
                          " is of masked tokens, which encoders (BERT) are trained on; this model ",
                          "predicts the next token: leave it out"));
}

int64_t pad_token(const ModelConfig& config) {
  for (const std::optional<int64_t>& id : {config.pad_token_id, config.eos_token_id})
    if (id && *id >= 0 && *id < config.vocab_size) return *id;
  return 0;
}

}  // namespace

void list_sample_options(OptionList& list, SampleOptions& o) {
  list.group(OptionGroup::data);
  list.text("text_field", o.corpus.field,
            "field of .jsonl documents; a line without it may have prompt and completion")
      .on_resume(ResumeRule::by_content);
  list.choice("on_bad_record", o.corpus.on_bad_record, kOnBadRecordHelp).on_resume(ResumeRule::by_content);
  list.flag("append_eos", o.corpus.append_end_of_text, "an end-of-text token after each document of text")
      .on_resume(ResumeRule::by_content);
  list.flag("no_append_eos", o.corpus.append_end_of_text, false, "the same as --append_eos false")
      .not_in_config();
  list.choice("packing", o.packing.kind,
              "documents: attention stays within each; concat: it crosses them; none: a document a sample, "
              "padded; best_fit: whole documents, as many as fit a sample")
      .on_resume(ResumeRule::same_order);
  list.choice("long_documents", o.packing.long_documents,
              "with --packing none and best_fit, of a document longer than a sample: cut: into several; "
              "truncate: its beginning stays; skip: it is left out")
      .on_resume(ResumeRule::same_order);
  list.count("max_seq_length", o.max_seq_length, from_to(1, kMostTokens), "tokens of a sample; takes 16k")
      .on_resume(ResumeRule::by_content)
      .in_stages();
  list.real("mlm_probability", o.mlm_probability, above(0, 1),
            "encoders: share of tokens that are masked; not given: 0.15");
  list.count("mask_token_id", o.mask_token_id, at_least(0),
             "encoders: what stands for masked tokens; not given: [MASK] or <mask> of the tokenizer");
}

std::optional<int64_t> find_mask_token(const fs::path& model_dir) {
  const fs::path file = tokenizer_of(model_dir);
  if (!is_there(file)) return std::nullopt;
  const Json json = read_json(file);
  const Json* added = find_field(json, "added_tokens", file.string());
  for (const AddedToken& token : parse_added_tokens(added == nullptr ? Json() : *added, file.string()))
    if (token.content == "[MASK]" || token.content == "<mask>") return token.id;
  return std::nullopt;
}

SampleOptions resolve_samples(const SampleOptions& options, const ModelConfig& config,
                              const fs::path& model_dir) {
  SampleOptions resolved = options;
  if (options.packing.long_documents != LongDocuments::cut && !options.packing.whole_documents())
    throw ConfigError(cat("--long_documents ", name_of(options.packing.long_documents),
                          " needs --packing best_fit or none; --packing ", name_of(options.packing.kind),
                          " fills each sample to its end, so that any document may be cut there"));
  if (config.shifts_labels()) {
    refuse_for_decoder(options.mlm_probability.has_value(), "mlm_probability");
    refuse_for_decoder(options.mask_token_id.has_value(), "mask_token_id");
    return resolved;
  }
  if (!resolved.mlm_probability) resolved.mlm_probability = MaskedTokenOptions{}.probability;
  OptionList list;
  list_sample_options(list, resolved);
  list.check();
  if (!resolved.mask_token_id) resolved.mask_token_id = mask_token_of(model_dir);
  if (*resolved.mask_token_id < 0 || *resolved.mask_token_id >= config.vocab_size)
    throw ConfigError(cat("--mask_token_id: the mask token ", *resolved.mask_token_id,
                          " is outside the model's vocabulary of ", config.vocab_size, " ids"));
  return resolved;
}

LoaderOptions sample_loader_options(const SampleOptions& resolved, const ModelConfig& config) {
  LoaderOptions loader;
  loader.packing = resolved.packing;
  loader.vocab_size = config.vocab_size;
  loader.pad_token_id = pad_token(config);
  if (resolved.mlm_probability && resolved.mask_token_id)
    loader.masked_tokens = MaskedTokenOptions{.probability = *resolved.mlm_probability,
                                              .mask_token_id = *resolved.mask_token_id,
                                              .vocab_size = config.vocab_size};
  return loader;
}

}  // namespace trireme
