#include "trireme/data/set_fingerprint.h"

#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/json.h"
#include "trireme/base/sha256.h"
#include "trireme/data/tokenizer_vocabulary.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

std::string hex_sha256(std::string_view bytes) {
  return hex_digits(sha256(bytes));
}

// SHA-256 of the first `count` tokens in the order of their ids: the ids below `count`, if none is missing.
std::string sha256_of_first(int64_t count, const TokensById& vocabulary) {
  std::string all;
  for (const auto& [id, token] : vocabulary) {
    if (count-- == 0) break;
    all += cat(id, " ", token.size(), " ", token, "\n");
  }
  return hex_sha256(all);
}

// Describes the first id of the set that means another token in the model; nullopt if there is none.
std::optional<std::string> first_difference(const TokensById& of_set, const TokensById& of_model) {
  for (const auto& [id, token] : of_set) {
    const auto other = of_model.find(id);
    if (other == of_model.end())
      return cat("id ", id, " is \"", quotation(token), "\" in the set and no token of the model");
    if (other->second != token)
      return cat("id ", id, " is \"", quotation(token), "\" in the set and \"", quotation(other->second),
                 "\" in the model");
  }
  return std::nullopt;
}

// The vocabulary of the tokenizer that made the set; nullopt if its file is gone or was changed.
std::optional<TokensById> vocabulary_of_set(const fs::path& tokenizer, const std::string& sha256) {
  try {
    const std::string text = InputFile(tokenizer, "a tokenizer.json").whole(kLargestTokenizerBytes);
    if (hex_sha256(text) == sha256) return parse_vocabulary(text, tokenizer.string());
  } catch (const Error&) {
    // Only the error message lacks a detail then.
  }
  return std::nullopt;
}

// A mix of sets that do not all say it has a file for the sake of its chats.
bool tells_tokenizer(const Json& made) {
  return made.contains("tokenizer_sha256") || made.contains("vocabulary_sha256");
}

// Another program may have written the set anew, without its modes, say. Older files do not count prompts.
void check_counts(const Json& made, const std::string& origin, const IndexedDataset& set) {
  const std::pair<const char*, int64_t> counts[] = {
      {"documents", set.documents()},
      {"tokens", set.tokens()},
      {"prompt_tokens", set.prompts().tokens_in({0, set.tokens()})}};
  for (const auto& [name, found] : counts)
    if (made.contains(name) && whole_number(made, name, {}, origin) != found)
      throw DataError(cat(origin, ": is of a set with ", name, " ", quotation(made[name]), ", and ",
                          set.path().string(), " has ", found, ": the set was changed since; make it anew"));
}

// The set's ids must mean the same tokens in the model's tokenizer.json.
void check_tokenizer(const Json& made, const fs::path& file, const fs::path& tokenizer) {
  const std::string origin = file.string();
  const std::string text = InputFile(tokenizer, "a tokenizer.json").whole(kLargestTokenizerBytes);
  const std::string made_with = text_value(made, "tokenizer_sha256", origin);
  if (hex_sha256(text) == made_with) return;  // the quick case
  const TokensById vocabulary = parse_vocabulary(text, tokenizer.string());
  const int64_t tokens = whole_number(made, "vocabulary", {}, origin);
  if (sha256_of_first(tokens, vocabulary) == text_value(made, "vocabulary_sha256", origin)) return;
  const std::string maker = text_value(made, "tokenizer", origin);
  std::string why = cat("not all of the set's ", tokens, " ids are the same tokens there");
  if (const auto of_set = vocabulary_of_set(maker, made_with)) {
    const auto difference = first_difference(*of_set, vocabulary);
    if (!difference) return;  // the model has more tokens, some with ids between the set's
    why = *difference;
  }
  throw ConfigError(cat(origin, ": the set was made with the tokenizer ", quotation(maker), " (", tokens,
                        " tokens); the ids of the model's, ", tokenizer.string(), " (", vocabulary.size(),
                        " tokens), mean other tokens (", why, "): make the set anew with ",
                        made_with.empty() ? "python -m trireme.chats" : "trireme tokenize", " --tokenizer ",
                        tokenizer.parent_path().string(), ", or remove ", file.filename().string(),
                        " if you know better"));
}

// Older files do not tell it.
void check_largest_id(const Json& made, const std::string& origin, int64_t vocab_size) {
  if (!made.contains("largest_id")) return;
  const int64_t largest = whole_number(made, "largest_id", {0, kLargestId}, origin);
  if (vocab_size > 0 && largest >= vocab_size)
    throw ConfigError(cat(origin, ": the set holds the id ", largest, ", and the model's vocabulary has ",
                          vocab_size, " ids: another model's tokenizer made the set, or ", kTokensWithoutRows,
                          "; make the set with the model's tokenizer, or give the model those rows and save "
                          "it again"));
}

}  // namespace

fs::path set_fingerprint_file(const fs::path& prefix) {
  fs::path file = indexed_dataset_bin(prefix);
  file.replace_extension(".set.json");
  return file;
}

std::optional<fs::path> set_with_file(const fs::path& file) {
  const std::string name = file.string();
  for (const std::string_view ending : {".bin", ".idx", ".set.json"}) {
    if (!name.ends_with(ending)) continue;
    const fs::path prefix = name.substr(0, name.size() - ending.size());
    if (is_indexed_dataset(prefix)) return prefix;
  }
  return std::nullopt;
}

void write_set_fingerprint(const fs::path& prefix, const fs::path& tokenizer, bool end_of_text_appended,
                           const SetCounts& counts) {
  const std::string text = InputFile(tokenizer, "a tokenizer.json").whole(kLargestTokenizerBytes);
  const TokensById vocabulary = parse_vocabulary(text, tokenizer.string());
  const auto tokens = static_cast<int64_t>(vocabulary.size());
  std::error_code error;
  const fs::path absolute = fs::absolute(tokenizer, error);
  Json fingerprint = {{"format", 1},
                      {"tokenizer", (error ? tokenizer : absolute).string()},
                      {"tokenizer_sha256", hex_sha256(text)},
                      {"vocabulary_sha256", sha256_of_first(tokens, vocabulary)},
                      {"vocabulary", tokens},
                      {"end_of_text_appended", end_of_text_appended}};
  write_shared_fingerprint(prefix, std::move(fingerprint), counts);
}

std::optional<Json> shared_fingerprint(const std::vector<fs::path>& prefixes) {
  Json shared;
  fs::path first;
  bool everywhere = true;
  for (const fs::path& prefix : prefixes) {
    const fs::path file = set_fingerprint_file(prefix);
    if (!is_name_taken(file)) {
      everywhere = false;
      continue;
    }
    const Json made = read_json(file);
    whole_number(made, "format", {1, 1}, file.string());
    if (!tells_tokenizer(made)) {
      everywhere = false;
      continue;
    }
    if (first.empty()) {
      shared = made;
      first = file;
    }
    const auto vocabulary = [](const Json& json, const fs::path& of) {
      return std::pair(whole_number(json, "vocabulary", {}, of.string()),
                       text_value(json, "vocabulary_sha256", of.string()));
    };
    if (vocabulary(made, file) != vocabulary(shared, first))
      throw ConfigError(cat(file.string(), " and ", first.string(),
                            ": the sets were made with tokenizers of other tokens, so their ids mean "
                            "different ones: make both with one tokenizer"));
  }
  if (!everywhere) return std::nullopt;
  return shared;
}

void write_shared_fingerprint(const fs::path& prefix, Json fingerprint, const SetCounts& counts) {
  fingerprint.update({{"documents", counts.documents},
                      {"tokens", counts.tokens},
                      {"prompt_tokens", counts.prompt_tokens},
                      {"largest_id", counts.largest_id}});
  replace_file(set_fingerprint_file(prefix),
               fingerprint.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void check_set_fingerprint(const IndexedDataset& set, const fs::path& model_dir, int64_t vocab_size) {
  const fs::path file = set_fingerprint_file(set.path()), tokenizer = model_dir / "tokenizer.json";
  if (!is_name_taken(file)) return;
  const Json made = read_json(file);
  const std::string origin = file.string();
  whole_number(made, "format", {1, 1}, origin);
  check_counts(made, origin, set);
  if (tells_tokenizer(made) && is_there(tokenizer)) check_tokenizer(made, file, tokenizer);
  check_largest_id(made, origin, vocab_size);
}

}  // namespace trireme
