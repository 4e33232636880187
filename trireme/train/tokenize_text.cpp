#include "trireme/train/tokenize_text.h"

#include "trireme/data/tokenize_corpus.h"

namespace trireme {

void tokenize_text(const TextToTokenize& text) {
  CorpusOptions options;
  options.field = text.text_field;
  options.append_end_of_text = text.append_eos;
  options.vocab_size = text.vocab_size;
  tokenize_corpus(Tokenizer::load(text.tokenizer_from), {text.input}, text.prefix, options);
}

}  // namespace trireme
