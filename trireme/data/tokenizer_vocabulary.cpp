#include "trireme/data/tokenizer_vocabulary.h"

#include <iterator>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/json.h"

namespace trireme {

TokensById parse_vocabulary(const std::string& text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  TokensById tokens;
  const Json* model = find_field(json, "model", origin);
  const Json* listed = model == nullptr ? nullptr : find_field(*model, "vocab", origin + ": model");
  if (listed == nullptr || !listed->is_structured()) return {};
  const bool is_unigram = listed->is_array();  // [[token, score], ...], by id
  for (const auto& [key, value] : listed->items()) {
    if (!is_unigram)
      tokens[whole_number(value, {0, kLargestId}, cat(origin, ": the id of \"", quotation(key), "\""))] = key;
    else if (value.is_array() && !value.empty() && value[0].is_string())
      tokens[std::ssize(tokens)] = value[0].get<std::string>();
    else
      throw DataError(cat(origin, ": model: vocab: entry ", key, " is no token with a score"));
  }
  if (const Json* added = find_field(json, "added_tokens", origin); added != nullptr && added->is_array())
    for (const Json& token : *added)
      tokens[whole_number(token, "id", {0, kLargestId}, origin)] = text_value(token, "content", origin);
  return tokens;
}

std::string tell_tokens_without_rows(const std::filesystem::path& model_dir, int64_t vocab_size) {
  const std::filesystem::path file = model_dir / "tokenizer.json";
  TokensById tokens;
  try {
    if (!is_there(file)) return {};
    tokens =
        parse_vocabulary(InputFile(file, "a tokenizer.json").whole(kLargestTokenizerBytes), file.string());
  } catch (const Error&) {
    return {};  // a run on a set of tokens needs none
  }
  const auto first = tokens.lower_bound(vocab_size);
  if (first == tokens.end()) return {};
  const auto beyond = std::distance(first, tokens.end());
  return cat("note: ", file.string(), " has ", beyond, beyond == 1 ? " token" : " tokens",
             " beyond the model's vocabulary of ", vocab_size, " ids, the first is ", first->first, ", \"",
             quotation(first->second),
             "\", as some published models have. Data that holds one would end the run. "
             "If ",
             kTokensWithoutRows, ", call that and save the model again");
}

}  // namespace trireme
