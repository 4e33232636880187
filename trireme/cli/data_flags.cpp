#include "trireme/cli/data_flags.h"

namespace trireme {

void DataFlags::declare(OptionParser& parser, const std::string& file_flag) {
  parser.path(file_flag, file, "text (.txt, .jsonl or a folder), or the PREFIX of a tokenized set");
  parser.required(file_flag);
  parser.text("text_field", text_field, "field of .jsonl documents");
  parser.flag("no_append_eos", no_append_eos, "no end-of-text token after documents of text");
  parser.choice(
      "packing", packing, packing_names(),
      "documents: attention stays within each; concat: it crosses them; none: a document a sample, padded");
  parser.real("mlm_probability", mlm_probability, "encoders: share of tokens that are masked");
  parser.integer("mask_token_id", mask_token_id,
                 "encoders: what stands for masked tokens; not given: [MASK] or <mask> of the tokenizer");
  parser.count("max_seq_length", max_seq_length, "tokens of a sample; takes 16k");
}

SampleOptions DataFlags::samples(const OptionParser& parser) const {
  SampleOptions options;
  options.packing = parse_packing(packing);
  if (parser.given("mlm_probability")) options.mlm_probability = mlm_probability;
  if (parser.given("mask_token_id")) options.mask_token_id = mask_token_id;
  return options;
}

}  // namespace trireme
