#include "trireme/train/sample_options.h"

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/json.h"
#include "trireme/data/added_tokens.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

int64_t find_mask_token(const fs::path& model_dir) {
  const fs::path file = model_dir / "tokenizer.json";
  const bool there = is_there(file);
  if (there) {
    const Json json = read_json(file);
    const Json* added = find_field(json, "added_tokens", file.string());
    for (const AddedToken& token : parse_added_tokens(added == nullptr ? Json() : *added, file.string()))
      if (token.content == "[MASK]" || token.content == "<mask>") return token.id;
  }
  throw ConfigError(cat(file.string(),
                        there ? ": none of its added_tokens is [MASK] or <mask>" : ": there is no such file",
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

SampleOptions resolve_samples(const SampleOptions& options, const ModelConfig& config,
                              const fs::path& model_dir) {
  SampleOptions resolved = options;
  if (config.shifts_labels()) {
    refuse_for_decoder(options.mlm_probability.has_value(), "mlm_probability");
    refuse_for_decoder(options.mask_token_id.has_value(), "mask_token_id");
    return resolved;
  }
  if (!resolved.mlm_probability) resolved.mlm_probability = MaskedTokenOptions{}.probability;
  if (!(*resolved.mlm_probability > 0 && *resolved.mlm_probability <= 1))
    throw ConfigError(
        cat("--mlm_probability is ", *resolved.mlm_probability, "; expected a number above 0 and up to 1"));
  if (!resolved.mask_token_id) resolved.mask_token_id = find_mask_token(model_dir);
  if (*resolved.mask_token_id < 0 || *resolved.mask_token_id >= config.vocab_size)
    throw ConfigError(cat("--mask_token_id: the mask token ", *resolved.mask_token_id,
                          " is outside the model's vocabulary of ", config.vocab_size, " ids"));
  return resolved;
}

void check_packing(Packing packing, const EngineOptions& engine) {
  if (packing == Packing::concat || engine.device.is_cpu() || engine.attention != AttentionKernel::cudnn)
    return;
  throw ConfigError(cat("--attention cudnn does not know documents that share a sample, which --packing ",
                        name_of(packing), " makes; use --attention auto or flash, or --packing concat"));
}

LoaderOptions sample_loader_options(const SampleOptions& resolved, const ModelConfig& config) {
  LoaderOptions loader;
  loader.packing = resolved.packing;
  loader.vocab_size = config.vocab_size;
  loader.pad_token_id = pad_token(config);
  if (resolved.mlm_probability && resolved.mask_token_id) {
    MaskedTokenOptions masked;
    masked.probability = *resolved.mlm_probability;
    masked.mask_token_id = *resolved.mask_token_id;
    masked.vocab_size = config.vocab_size;
    loader.masked_tokens = masked;
  }
  return loader;
}

}  // namespace trireme
