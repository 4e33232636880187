#include "trireme/tokenizer/token_model.h"

#include "trireme/base/error.h"
#include "trireme/tokenizer/byte_bpe.h"
#include "trireme/tokenizer/character_bpe.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"
#include "trireme/tokenizer/word_piece.h"

namespace trireme {

namespace {

// Files of the first versions name no type, BERT's among them; each kind has a field that no other has.
std::string type_of(const Json& model, const std::string& origin) {
  const char* const silent = model.contains("merges")                     ? "BPE"
                             : model.contains("max_input_chars_per_word") ? "WordPiece"
                                                                          : "of no name";
  return text_value(model, "type", origin, silent);
}

}  // namespace

void refuse_unbuilt_model(const Json& model, const std::string& origin) {
  const std::string type = type_of(model, origin);
  if (type == "Unigram")
    refuse_tokenizer(origin, "the tokenizer is SentencePiece's Unigram, the kind of T5 and XLM-R");
  if (type != "BPE" && type != "WordPiece")
    refuse_tokenizer(origin, cat("the tokenizer's model is ", quotation(type)));
}

std::unique_ptr<const TokenModel> read_token_model(const Json& model, Alphabet alphabet,
                                                   const std::string& origin) {
  refuse_unbuilt_model(model, origin);
  const bool word_piece = type_of(model, origin) == "WordPiece";
  if (word_piece && alphabet == Alphabet::bytes)
    refuse_tokenizer(origin, "the tokenizer is WordPiece behind the pre_tokenizer ByteLevel");
  if (word_piece) return std::make_unique<WordPiece>(model, origin);
  if (alphabet == Alphabet::bytes) return std::make_unique<ByteBpe>(model, origin);
  return std::make_unique<CharacterBpe>(model, origin);
}

}  // namespace trireme
