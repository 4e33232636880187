#include "trireme/data/tokenizer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/data/byte_level.h"
#include "trireme/data/utf8.h"

namespace trireme {

namespace {

const Json kNone;

const Json& part(const Json& json, const char* key) {
  return json.contains(key) ? json[key] : kNone;
}

const Json& checked_model(const Json& json, const std::string& origin) {
  const Json& model = part(json, "model");
  if (!model.is_object())
    throw DataError(cat(origin, ": has no model; expected a tokenizer.json of Hugging Face"));
  // Files of the first versions name no type; only BPE has merges.
  const auto type = model.value("type", model.contains("merges") ? "BPE" : "of no name");
  if (type != "BPE")
    throw ConfigError(
        cat(origin, ": the model ", type, " is not built; byte-level BPE is (GPT-2, Llama-3, Qwen)"));
  return model;
}

std::filesystem::path find_file(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) return path;
  if (!std::filesystem::exists(path))
    throw ConfigError(cat("the tokenizer ", path.string(), " does not exist"));
  auto file = path / "tokenizer.json";
  if (!std::filesystem::is_regular_file(file))
    throw ConfigError(cat(path.string(),
                          ": holds no tokenizer.json; transformers' AutoTokenizer writes one: "
                          "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"));
  return file;
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const auto file = find_file(path);
  const Json json = read_json(file);
  if (!json.is_object()) throw DataError(cat(file.string(), ": is not an object; expected a tokenizer.json"));
  try {
    return {json, file};
  } catch (const Json::exception& error) {
    throw DataError(cat(file.string(), ": a value has the wrong type: ", error.what()));
  }
}

Tokenizer::Tokenizer(const Json& json, std::filesystem::path file)
    : file_(std::move(file)),
      normalizer_(part(json, "normalizer"), file_.string()),
      // The model comes first, so that another kind of tokenizer is refused by its kind's name.
      pre_tokenizer_((checked_model(json, file_.string()), part(json, "pre_tokenizer")), file_.string()),
      bpe_(checked_model(json, file_.string()), file_.string()) {
  for (const auto& [token, id] : bpe_.vocabulary()) name_token(id, token);
  read_added_tokens(part(json, "added_tokens"));
  vocab_size_ = static_cast<int64_t>(tokens_.size());
  special_.resize(tokens_.size());
  read_post_processor(part(json, "post_processor"));

  const Json& decoder = part(json, "decoder");
  decodes_bytes_ = !decoder.is_null();
  if (decodes_bytes_ && decoder.value("type", "") != "ByteLevel")
    throw ConfigError(cat(file_.string(), ": the decoder ", decoder.value("type", "of no name"),
                          " is not built; ByteLevel is"));
}

void Tokenizer::name_token(int32_t id, std::string_view token) {
  const auto place = static_cast<size_t>(id);
  if (place >= tokens_.size()) tokens_.resize(place + 1);
  tokens_[place] = token;
}

void Tokenizer::read_added_tokens(const Json& json) {
  const std::vector<AddedToken> added = parse_added_tokens(json, file_.string());
  // The library numbers tokens that the model lacks in the file's order and does not look at their ids.
  const auto model_size = static_cast<int32_t>(bpe_.vocabulary().size());
  int32_t largest = -1;
  for (const AddedToken& token : added) {
    int32_t expected = 0;
    if (const auto known = id_of_token(token.content))
      expected = *known;
    else
      expected = std::max(largest + 1, model_size);
    if (expected != token.id)
      throw DataError(cat(file_.string(), ": the added token ", token.content, " has the id ", token.id,
                          " in the file, but would get ", expected,
                          " by its place, as the Hugging Face library numbers "
                          "tokens: make the ids run on from the model's ",
                          model_size, " tokens"));
    added_ids_[token.content] = token.id;
    largest = std::max(largest, token.id);
    if (static_cast<size_t>(token.id) >= special_.size()) special_.resize(static_cast<size_t>(token.id) + 1);
    if (token.special) special_[static_cast<size_t>(token.id)] = true;
  }
  std::vector<std::pair<std::string, AddedToken>> raw, normalized;
  for (const bool special : {true, false}) {  // of equal strings a special token counts
    for (const AddedToken& token : added) {
      if (token.special != special) continue;
      std::string storage;
      // A normalized token is decoded to its normalized form, as the library does.
      const std::string_view text =
          token.normalized ? normalizer_.normalize(token.content, storage) : std::string_view(token.content);
      (token.normalized ? normalized : raw).emplace_back(text, token);
      name_token(token.id, text);
    }
  }
  find_in_raw_ = std::make_unique<AddedTokenFinder>(raw);
  find_in_normalized_ = std::make_unique<AddedTokenFinder>(normalized);
}

void Tokenizer::read_post_processor(const Json& json) {
  if (json.is_null()) return;
  const auto type = json.value("type", std::string("of no name"));
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& processor : json.at("processors")) read_post_processor(processor);
    return;
  }
  if (type != "TemplateProcessing")
    throw ConfigError(cat(file_.string(), ": the post_processor ", type,
                          " is not built; ByteLevel, TemplateProcessing and Sequence are"));
  std::vector<int32_t> before, after;
  int texts = 0;
  for (const Json& item : json.at("single")) {
    if (item.contains("Sequence")) {
      ++texts;
      continue;
    }
    const auto id = item.at("SpecialToken").at("id").get<std::string>();
    for (const Json& token : json.at("special_tokens").at(id).at("ids"))
      (texts == 0 ? before : after).push_back(token.get<int32_t>());
  }
  if (texts != 1)
    throw ConfigError(cat(file_.string(), ": the post_processor's template for one text names it ", texts,
                          " times; once is built"));
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
}

void Tokenizer::encode_plain(std::string_view text, PieceCache& cache, std::vector<int32_t>& ids) const {
  pre_tokenizer_.split(text, [&](std::string_view piece) { bpe_.encode(piece, cache, ids); });
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
    find_in_normalized_->split(normalizer_.normalize(raw, storage),
                               [&](std::string_view plain, const AddedToken* found) {
                                 if (found != nullptr)
                                   ids.push_back(found->id);
                                 else
                                   encode_plain(plain, cache, ids);
                               });
  });
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  bool first = true;
  for (const int32_t id : ids) {
    const std::string& token = token_of_id(id);
    if (skip_special_tokens && special_[static_cast<size_t>(id)]) continue;
    if (!decodes_bytes_ && !first) bytes += ' ';  // as the library joins tokens when the file has no decoder
    first = false;
    const auto spelled = decodes_bytes_ ? bytes_of_token(token) : std::nullopt;
    bytes += spelled ? *spelled : token;
  }
  return is_valid_utf8(bytes) ? bytes : with_replacements(bytes);
}

std::optional<int32_t> Tokenizer::id_of_token(const std::string& token) const {
  if (const auto found = added_ids_.find(token); found != added_ids_.end()) return found->second;
  if (const auto found = bpe_.vocabulary().find(token); found != bpe_.vocabulary().end())
    return found->second;
  return std::nullopt;
}

const std::string& Tokenizer::token_of_id(int32_t id) const {
  if (id < 0 || id >= vocab_size_ || tokens_[static_cast<size_t>(id)].empty())
    throw DataError(
        cat(file_.string(), ": there is no token with the id ", id, "; the ids are below ", vocab_size_));
  return tokens_[static_cast<size_t>(id)];
}

int32_t Tokenizer::end_of_text_id() const {
  const auto folder = file_.parent_path();
  const auto config = [&](const char* name) {
    const auto file = folder / name;
    return std::filesystem::is_regular_file(file) ? read_json(file) : Json::object();
  };
  const Json settings = config("tokenizer_config.json");
  Json eos = settings.is_object() ? settings.value("eos_token", Json()) : Json();
  if (eos.is_object()) eos = eos.value("content", Json());
  if (eos.is_string()) {
    if (const auto id = id_of_token(eos.get<std::string>())) return *id;
    throw ConfigError(cat((folder / "tokenizer_config.json").string(), ": eos_token is ", eos.dump(),
                          ", which ", file_.filename().string(), " does not have"));
  }
  for (const char* name : {"config.json", "generation_config.json"}) {
    const Json model = config(name);
    Json id = model.is_object() ? model.value("eos_token_id", Json()) : Json();
    if (id.is_array() && !id.empty()) id = Json(id[0]);
    if (!id.is_number_integer()) continue;
    token_of_id(id.get<int32_t>());
    return id.get<int32_t>();
  }
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|im_end|>", "<eos>"})
    if (const auto id = id_of_token(name)) return *id;
  throw ConfigError(cat(file_.string(), ": no end-of-text token is known: give eos_token in ",
                        (folder / "tokenizer_config.json").string(), " or eos_token_id in ",
                        (folder / "config.json").string()));
}

}  // namespace trireme
