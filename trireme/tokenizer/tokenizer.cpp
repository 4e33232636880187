#include "trireme/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

const Json kNone;

const Json& part(const Json& json, const char* key, const std::string& origin) {
  const Json* found = find_field(json, key, origin);
  return found == nullptr ? kNone : *found;
}

// Read before the other parts, so that errors name another tokenizer's kind first.
const Json& model_of(const Json& json, const std::string& origin) {
  const Json& model = part(json, "model", origin);
  if (!model.is_object())
    throw DataError(cat(origin, ": has no model; expected a tokenizer.json of Hugging Face"));
  refuse_unbuilt_model(model, origin);
  return model;
}

std::filesystem::path find_file(const std::filesystem::path& path) {
  if (is_file(path)) return path;
  if (!is_there(path)) throw ConfigError(cat("the tokenizer ", path.string(), " does not exist"));
  auto file = path / "tokenizer.json";
  if (!is_file(file))
    throw ConfigError(cat(path.string(),
                          ": holds no tokenizer.json; transformers' AutoTokenizer writes one: "
                          "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"));
  return file;
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const auto file = find_file(path);
  return {read_json(file), file};
}

Tokenizer::Tokenizer(const Json& json, std::filesystem::path file)
    : file_(std::move(file)),
      normalizer_((model_of(json, file_.string()), part(json, "normalizer", file_.string())), file_.string()),
      pre_tokenizer_(part(json, "pre_tokenizer", file_.string()), file_.string()),
      model_(read_token_model(model_of(json, file_.string()), pre_tokenizer_.alphabet(), file_.string())) {
  const std::string origin = file_.string();
  if (pre_tokenizer_.knows_the_beginning() && !normalizer_.keeps_the_beginning())
    refuse_tokenizer(origin,
                     "the tokenizer's Metaspace has the prepend_scheme first behind a normalizer that may "
                     "remove the beginning of a text");
  // To the library, all that the first character became stands at the beginning.
  if (pre_tokenizer_.splits_before_the_beginning() && normalizer_.lengthens_the_beginning())
    refuse_tokenizer(origin,
                     "the tokenizer's Metaspace has the prepend_scheme first behind a normalizer that may "
                     "make several characters of the first one, and a pre_tokenizer that may split them");
  const std::vector<AddedToken> added = parse_added_tokens(part(json, "added_tokens", origin), origin);
  // The table of tokens by id has a row for each id: tokenizers that train models leave few ids out.
  const auto largest = static_cast<int64_t>(2 * (model_->vocabulary().size() + added.size()) + 65536);
  for (const auto& [token, id] : model_->vocabulary()) name_token(id, token, largest);
  read_added_tokens(added, largest);
  vocab_size_ = static_cast<int64_t>(tokens_.size());
  read_post_processor(part(json, "post_processor", origin));
}

void Tokenizer::name_token(int32_t id, std::string_view token, int64_t largest_id) {
  if (id > largest_id)
    throw DataError(cat(file_.string(), ": the token \"", quotation(token), "\" has the id ", id,
                        ", far beyond the number of ", "tokens that the file lists; ids up to ", largest_id,
                        " are read"));
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  if (!tokens_[index].empty())
    throw DataError(cat(
        file_.string(), ": the tokens \"", quotation(std::min<std::string_view>(tokens_[index], token)),
        "\" and \"", quotation(std::max<std::string_view>(tokens_[index], token)), "\" have one id, ", id));
  tokens_[index] = token;
}

void Tokenizer::read_added_tokens(const std::vector<AddedToken>& added, int64_t largest_id) {
  // The library numbers tokens that the model lacks in the file's order and ignores their ids.
  const auto model_size = static_cast<int32_t>(model_->vocabulary().size());
  int32_t largest = -1;
  for (const AddedToken& token : added) {
    const auto known = id_of_token(token.content);
    const int32_t expected = known ? *known : std::max(largest + 1, model_size);
    if (expected != token.id)
      throw DataError(cat(file_.string(), ": the added token ", quotation(token.content), " has the id ",
                          token.id, " in the file, but would get ", expected,
                          " by its position, as the Hugging Face library numbers "
                          "tokens: make the ids run on from the model's ",
                          model_size, " tokens"));
    if (!known) name_token(token.id, token.content, largest_id);
    added_ids_[token.content] = token.id;
    largest = std::max(largest, token.id);
  }
  std::vector<std::pair<std::string, AddedToken>> raw, normalized;
  for (const bool special : {true, false}) {  // of equal strings a special token counts
    for (const AddedToken& token : added) {
      if (token.special != special) continue;
      std::string storage;
      const std::string_view text =
          token.normalized ? normalizer_.normalize(token.content, storage) : std::string_view(token.content);
      (token.normalized ? normalized : raw).emplace_back(text, token);
    }
  }
  find_in_raw_ = std::make_unique<AddedTokenFinder>(raw);
  find_in_normalized_ = std::make_unique<AddedTokenFinder>(normalized);
}

void Tokenizer::read_post_processor(const Json& json) {
  if (json.is_null()) return;
  const std::string origin = file_.string() + ": post_processor";
  const auto type = text_value(json, "type", origin, "of no name");
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& processor : array_value(json, "processors", origin)) read_post_processor(processor);
    return;
  }
  if (type == "BertProcessing") {  // [CLS] and [SEP], as pairs of a token and its id
    const auto id = [&](const char* name) {
      const Json& pair = array_value(json, name, origin);
      return static_cast<int32_t>(whole_number(pair.size() == 2 ? pair[1] : Json(), {0, vocab_size_ - 1},
                                               cat(origin, ": the id of ", name)));
    };
    add_around_texts({id("cls")}, {id("sep")});
    return;
  }
  if (type != "TemplateProcessing")
    refuse_tokenizer(file_.string(), cat("the tokenizer's post_processor is ", quotation(type)));
  std::vector<int32_t> before, after;
  int texts = 0;
  for (const Json& item : array_value(json, "single", origin)) {
    if (find_field(item, "Sequence", origin) != nullptr) {
      ++texts;
      continue;
    }
    const auto name = text_value(object_value(item, "SpecialToken", origin), "id", origin);
    const Json& special = object_value(object_value(json, "special_tokens", origin), name, origin);
    for (const Json& token : array_value(special, "ids", origin)) {
      const auto id = whole_number(token, {0, vocab_size_ - 1}, cat(origin, ": an id of ", quotation(name)));
      (texts == 0 ? before : after).push_back(static_cast<int32_t>(id));
    }
  }
  if (texts != 1)
    throw ConfigError(cat(file_.string(), ": the post_processor's template for one text names it ", texts,
                          " times; once is built"));
  add_around_texts(std::move(before), std::move(after));
}

void Tokenizer::add_around_texts(std::vector<int32_t> before, std::vector<int32_t> after) {
  if (before.empty() && after.empty()) return;
  if (!before_.empty() || !after_.empty())  // the library drops some of them then
    refuse_tokenizer(file_.string(), "the tokenizer's post_processor has two parts that add tokens");
  before_ = std::move(before);
  after_ = std::move(after);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  PieceCache cache;
  return encode(text, cache);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, PieceCache& cache) const {
  std::string valid;
  if (!is_valid_utf8(text)) text = valid = with_replacements(text);
  std::vector<int32_t> ids = before_;
  find_in_raw_->split(text, [&](std::string_view raw, const AddedToken* token) {
    if (token != nullptr) {
      ids.push_back(token->id);
      return;
    }
    std::string storage;
    const std::string_view normal = normalizer_.normalize(raw, storage);
    find_in_normalized_->split(normal, [&](std::string_view plain, const AddedToken* found) {
      if (found != nullptr) {
        ids.push_back(found->id);
        return;
      }
      const bool begins = raw.data() == text.data() && plain.data() == normal.data();
      pre_tokenizer_.split(plain, begins ? PreTokenizer::Origin::begin : PreTokenizer::Origin::later,
                           [&](std::string_view piece) { model_->encode(piece, cache, ids); });
    });
  });
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::optional<int32_t> Tokenizer::id_of_token(const std::string& token) const {
  if (const auto found = added_ids_.find(token); found != added_ids_.end()) return found->second;
  if (const auto found = model_->vocabulary().find(token); found != model_->vocabulary().end())
    return found->second;
  return std::nullopt;
}

const std::string& Tokenizer::token_of_id(int32_t id) const {
  if (id < 0 || id >= vocab_size_ || tokens_[static_cast<size_t>(id)].empty())
    throw DataError(
        cat(file_.string(), ": there is no token with the id ", id, "; the ids are below ", vocab_size_));
  return tokens_[static_cast<size_t>(id)];
}

NamedEndOfText named_end_of_text(const std::filesystem::path& folder) {
  const auto config = [&](const char* name) {
    const auto file = folder / name;
    return is_file(file) ? read_json(file) : Json::object();
  };
  const std::string settings_file = (folder / "tokenizer_config.json").string();
  const Json settings = config("tokenizer_config.json");
  const Json* eos = find_field(settings, "eos_token", settings_file);
  if (eos != nullptr && eos->is_object()) eos = find_field(*eos, "content", settings_file);
  if (eos != nullptr && eos->is_string()) return {*eos, settings_file};
  for (const char* name : {"config.json", "generation_config.json"}) {
    const std::string origin = (folder / name).string();
    const Json model = config(name);
    const Json* id = find_field(model, "eos_token_id", origin);
    if (id != nullptr && id->is_array() && !id->empty()) id = &(*id)[0];
    if (id != nullptr && id->is_number_integer()) return {*id, origin};
  }
  return {};
}

int32_t Tokenizer::end_of_text_id() const {
  const auto folder = file_.parent_path();
  const NamedEndOfText named = named_end_of_text(folder);
  if (named.token.is_string()) {
    if (const auto id = id_of_token(named.token.get<std::string>())) return *id;
    throw ConfigError(cat(named.file, ": eos_token is ", quotation(named.token), ", which ",
                          file_.filename().string(), " does not have"));
  }
  if (!named.token.is_null()) {
    const auto number =
        static_cast<int32_t>(whole_number(named.token, {0, vocab_size_ - 1}, named.file + ": eos_token_id"));
    token_of_id(number);
    return number;
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>", "[SEP]"})
    if (const auto id = id_of_token(name)) return *id;
  throw ConfigError(cat(file_.string(), ": no end-of-text token is known: give eos_token in ",
                        (folder / "tokenizer_config.json").string(), " or eos_token_id in ",
                        (folder / "config.json").string()));
}

}  // namespace trireme
