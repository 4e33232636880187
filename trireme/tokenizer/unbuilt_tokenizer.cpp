#include "trireme/tokenizer/unbuilt_tokenizer.h"

#include "trireme/base/error.h"

namespace trireme {

void refuse_tokenizer(const std::string& origin, const std::string& what) {
  throw ConfigError(cat(
      origin, ": ", what,
      ". Trireme reads byte-level BPE (GPT-2, Llama-3, Qwen), SentencePiece's BPE (Llama-2, Mistral, Gemma) "
      "and WordPiece (BERT). With another tokenizer, let its Python library make the token ids, write them "
      "as PREFIX.bin and PREFIX.idx (trireme.write_set of the Python package, or 15 lines of Python: "
      "docs/data.md, \"Tokens of any tokenizer\"), and give PREFIX as --train_file"));
}

}  // namespace trireme
