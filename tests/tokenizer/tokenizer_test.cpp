// What the tokenizer refuses, by name; wrong UTF-8; the end-of-text token; the byte-level tokenizer of tiny
// models.
#include "trireme/tokenizer/tokenizer.h"

#include <span>
#include <sys/mman.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/tokenizer/bert_text.h"
#include "trireme/tokenizer/byte_level_tokenizer.h"
#include "trireme/tokenizer/split_pattern.h"
#include "trireme/tokenizer/utf8.h"

#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

std::filesystem::path fixture(const std::string& name) {
  return testing::source_folder() / "tests/tokenizer/fixtures" / name;
}

// The message of loading a fixture with one value changed.
template <typename E>
std::string refusal(const std::string& pointer, const Json& value, const char* kind = "gpt2") {
  const TemporaryFolder folder;
  Json json = read_json(fixture(cat(kind, "_tokenizer.json")));
  json[Json::json_pointer(pointer)] = value;
  const auto file = folder.write("tokenizer.json", json.dump());
  return message_of<E>([&] { Tokenizer::load(file); });
}

Json typed(const std::string& type) {
  return {{"type", type}};
}

TEST(Tokenizer, what_is_not_built_is_refused_by_name) {
  const auto refused = [](const std::string& pointer, const Json& value) {
    return refusal<ConfigError>(pointer, value);
  };
  EXPECT_THAT(refused("/model/type", "Unigram"),
              AllOf(HasSubstr("Unigram, the kind of T5"), HasSubstr("PREFIX.bin and PREFIX.idx"),
                    HasSubstr("docs/data.md")));
  EXPECT_THAT(refused("/model/type", "WordLevel"), HasSubstr("model is WordLevel"));
  EXPECT_THAT(refused("/model/type", "WordPiece"), HasSubstr("WordPiece behind the pre_tokenizer ByteLevel"));
  EXPECT_THAT(refused("/normalizer", typed("NFKC")), HasSubstr("normalizer is NFKC"));
  EXPECT_THAT(
      refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {typed("NFC"), typed("Lowercase")}}}),
      HasSubstr("normalizer is Lowercase"));
  EXPECT_THAT(refused("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}}),
              HasSubstr("normalizer replaces {\"Regex\":\"a\"}, not a String"));
  EXPECT_THAT(refused("/pre_tokenizer", typed("Whitespace")), HasSubstr("pre_tokenizer is Whitespace"));
  EXPECT_THAT(refused("/pre_tokenizer",
                      {{"type", "Sequence"}, {"pretokenizers", {typed("ByteLevel"), typed("ByteLevel")}}}),
              HasSubstr("ByteLevel before another step than"));
  EXPECT_THAT(refused("/pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Removed"}}),
              HasSubstr("at punctuation with the behavior \"Removed\", not"));
  EXPECT_THAT(refused("/pre_tokenizer",
                      {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Contiguous"}}),
              HasSubstr("the behavior \"Contiguous\", not"));
  EXPECT_THAT(refused("/pre_tokenizer",
                      {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}}),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("split pattern is not valid")));
  EXPECT_THAT(refused("/post_processor", typed("RobertaProcessing")),
              HasSubstr("post_processor is RobertaProcessing"));
  EXPECT_THAT(refused("/model/dropout", 0.1), HasSubstr("BPE has dropout 0.1"));
  EXPECT_THAT(refused("/model/unk_token", "<unk>"), HasSubstr("BPE has unk_token \"<unk>\""));
  EXPECT_THAT(refused("/model/byte_fallback", true), HasSubstr("BPE has byte_fallback true"));
  EXPECT_THAT(refused("/model/continuing_subword_prefix", "##"), HasSubstr("continuing_subword_prefix"));
}

TEST(Tokenizer, kinds_over_characters_refuse_what_would_change_their_ids) {
  const Json first = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  EXPECT_THAT(refusal<ConfigError>("/pre_tokenizer", first, "bert"),
              HasSubstr("may remove the beginning of a text"));
  EXPECT_EQ(refusal<ConfigError>("/pre_tokenizer", first, "gemma"), "no error");
  EXPECT_THAT(refusal<ConfigError>("/model/continuing_subword_prefix", "##", "llama2"),
              HasSubstr("BPE has continuing_subword_prefix"));
  EXPECT_THAT(refusal<ConfigError>("/model/dropout", 0.1, "llama2"), HasSubstr("BPE has dropout 0.1"));
  EXPECT_THAT(refusal<DataError>("/pre_tokenizer/replacement", "__", "mistral"),
              HasSubstr("expected one character"));
  EXPECT_THAT(refusal<DataError>("/pre_tokenizer/prepend_scheme", "last", "mistral"),
              HasSubstr("expected always, first or never"));
  EXPECT_THAT(refusal<DataError>("/pre_tokenizer/add_prefix_space", false, "mistral"),
              HasSubstr("expected never, or no add_prefix_space"));
  for (const char* pointer : {"/model/max_input_chars_per_word", "/model/unk_token", "/normalizer/clean_text",
                              "/model/continuing_subword_prefix"})
    EXPECT_THAT(refusal<DataError>(pointer, nullptr, "bert"),
                AllOf(HasSubstr("tokenizer.json"), HasSubstr("expected")))
        << pointer;
  EXPECT_THAT(refusal<DataError>("/post_processor/cls", {"[CLS]"}, "bert_cased"), HasSubstr("the id of cls"));
}

TEST(Tokenizer, a_second_part_of_the_post_processor_that_adds_tokens_is_refused) {
  const auto puts = [](bool before) {
    const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
               token = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
    return Json{{"type", "TemplateProcessing"},
                {"single", before ? Json::array({token, text}) : Json::array({text})},
                {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}};
  };
  const auto refused = [&](const Json& parts) {
    return refusal<ConfigError>("/post_processor", {{"type", "Sequence"}, {"processors", parts}}, "llama2");
  };
  EXPECT_THAT(refused({puts(true), puts(true)}), HasSubstr("two parts that add tokens"));
  EXPECT_EQ(refused({typed("ByteLevel"), puts(false), puts(true), puts(false)}), "no error");
}

TEST(Tokenizer, a_metaspace_of_the_beginning_is_refused_where_the_beginning_may_be_split) {
  const Json first = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  const Json split = {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Isolated"}};
  const auto message = [&](const Json& normalizer, const Json& steps) {
    const TemporaryFolder folder;
    Json json = read_json(fixture("gemma_tokenizer.json"));
    json["normalizer"] = normalizer;
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const auto file = folder.write("tokenizer.json", json.dump());
    return message_of<ConfigError>([&] { Tokenizer::load(file); });
  };
  const Json prepend = {{"type", "Prepend"}, {"prepend", "x"}};
  const auto replace = [](const char* content) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", content}};
  };
  for (const Json& lengthens : {prepend, replace("xy")}) {
    EXPECT_THAT(message(lengthens, {split, first}), HasSubstr("a pre_tokenizer that may split them"));
    EXPECT_EQ(message(lengthens, {first, split}), "no error");
  }
  EXPECT_EQ(message(replace("x"), {split, first}), "no error");
  EXPECT_EQ(message(nullptr, {split, first}), "no error");
}

// As the library reads it: the first takes all the white space, and nothing is left of the next ones.
TEST(Tokenizer, an_added_token_of_white_space_is_there_once_where_it_takes_the_white_space_around) {
  const TemporaryFolder folder;
  write_byte_level_tokenizer(folder / "plain");
  Json json = read_json(folder / "plain/tokenizer.json");
  json["added_tokens"].push_back({{"id", 258},
                                  {"content", " "},
                                  {"single_word", false},
                                  {"lstrip", true},
                                  {"rstrip", true},
                                  {"normalized", false},
                                  {"special", false}});
  const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
  EXPECT_EQ(tokenizer.encode("e   aa b"), (std::vector<int32_t>{'e', 258, 'a', 'a', 258, 'b'}));
  EXPECT_EQ(tokenizer.encode("   "), (std::vector<int32_t>{258}));
}

// 64 steps of a small file would make 2^64 bytes of one, and 100,000 steps would overflow the stack.
TEST(Tokenizer, a_small_file_does_not_fill_the_memory) {
  const Json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  EXPECT_THAT(
      refusal<ConfigError>("/normalizer", {{"type", "Sequence"}, {"normalizers", Json(64, twice)}}, "llama2"),
      HasSubstr("1024 times as long"));
  EXPECT_THAT(refusal<ConfigError>("/pre_tokenizer",
                                   {{"type", "Sequence"}, {"pretokenizers", Json(100'000, typed("Digits"))}},
                                   "llama2"),
              HasSubstr("100000 steps"));
}

TEST(Tokenizer, a_character_or_word_without_a_token_is_an_error_not_lost) {
  const auto message = [](const char* kind, const char* unknown) {
    const TemporaryFolder folder;
    Json json = read_json(fixture(cat(kind, "_tokenizer.json")));
    json["model"]["unk_token"] = unknown;
    json["model"]["byte_fallback"] = false;
    const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
    return message_of<DataError>([&] { tokenizer.encode("a \u16a0 b"); });
  };
  EXPECT_THAT(message("llama2", "[none]"),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("\u16a0"), HasSubstr("lost")));
  EXPECT_THAT(message("bert", "[none]"), AllOf(HasSubstr("tokenizer.json"), HasSubstr("[none]")));
  EXPECT_EQ(message("llama2", "<unk>"), "no error");
}

// As the library orders and fuses them: a run of unknown characters is one token, which comes behind the
// bytes of a later character. The text is long enough to be cut.
TEST(Tokenizer, unknown_characters_stay_together_in_a_long_text) {
  const auto tokens = [](bool fuse) {
    const TemporaryFolder folder;
    Json json = read_json(fixture("no_bytes_tokenizer.json"));
    json["model"]["fuse_unk"] = fuse;
    const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
    std::string runes, text;
    for (int i = 0; i < 40; ++i) runes += "\u16a0";
    for (const int32_t id : tokenizer.encode(cat(runes, "\u00fc", runes, "a")))
      text += tokenizer.token_of_id(id) == "<unk>" ? "?" : tokenizer.token_of_id(id);
    return text;
  };
  EXPECT_EQ(tokens(true), "\u2581<0xC3><0xBC>?a");
  EXPECT_EQ(tokens(false), "\u2581" + std::string(39, '?') + "<0xC3><0xBC>" + std::string(41, '?') + "a");
}

TEST(Tokenizer, a_file_that_contradicts_itself_names_the_place) {
  const auto wrong = [](const std::string& pointer, const Json& value) {
    return refusal<DataError>(pointer, value);
  };
  EXPECT_THAT(wrong("/model", nullptr), HasSubstr("has no model"));
  EXPECT_THAT(wrong("/model/merges/3", "abc"), HasSubstr("model.merges[3]"));
  EXPECT_THAT(wrong("/model/merges/3", {"a", "zzqzz"}),
              AllOf(HasSubstr("model.merges[3]"), HasSubstr("\"zzqzz\" is not in the vocabulary")));
  EXPECT_THAT(wrong("/model/vocab/a", -1), HasSubstr("the id of \"a\" is -1"));
  EXPECT_THAT(wrong("/added_tokens/0/id", 5000),
              AllOf(HasSubstr("has the id 5000"), HasSubstr("would get 700")));
  EXPECT_THAT(wrong("/added_tokens/0/content", 7), HasSubstr("\"content\" is 7; expected a string"));
  EXPECT_THAT(wrong("/pre_tokenizer/add_prefix_space", "no"), HasSubstr("expected true or false"));
}

TEST(Tokenizer, another_kind_is_named_before_its_parts) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
  json["normalizer"] = typed("Precompiled");
  json["model"]["type"] = "Unigram";
  const auto file = folder.write("tokenizer.json", json.dump());
  EXPECT_THAT(message_of<ConfigError>([&] { Tokenizer::load(file); }),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("the kind of T5")));
}

// An id of 5e8 took 6 GiB.
TEST(Tokenizer, an_id_far_beyond_the_number_of_tokens_is_refused) {
  for (const Json& id : {Json(500'000'000), Json(1'000'000'000), Json(70'000 + 2 * 701)})
    EXPECT_THAT(refusal<DataError>("/model/vocab/a", id),
                AllOf(HasSubstr("tokenizer.json"), HasSubstr("\"a\""), HasSubstr("far beyond")))
        << id;
  for (const Json& id : {Json(2147483648), Json(1e30), Json(-1), Json("7")})
    EXPECT_THAT(refusal<DataError>("/model/vocab/a", id), HasSubstr("expected a whole number")) << id;
  EXPECT_EQ(refusal<DataError>("/model/vocab/~0", 60'000), "no error") << "holes are allowed";
}

TEST(Tokenizer, two_tokens_with_one_id_are_refused) {
  EXPECT_THAT(refusal<DataError>("/model/vocab/never", 93),
              AllOf(HasSubstr("\"never\""), HasSubstr("have one id, 93")));
}

TEST(Tokenizer, every_field_has_its_type) {
  const auto wrong = [](const std::string& pointer, const Json& value) {
    return refusal<DataError>(pointer, value);
  };
  for (const char* pointer :
       {"/model/type", "/model/vocab", "/model/merges", "/model/ignore_merges", "/added_tokens",
        "/added_tokens/0/special", "/added_tokens/0/id", "/pre_tokenizer/type", "/pre_tokenizer/use_regex"})
    EXPECT_THAT(wrong(pointer, 1.5), AllOf(HasSubstr("tokenizer.json"), HasSubstr("1.5; expected")))
        << pointer;
  EXPECT_THAT(wrong("/post_processor", {{"type", "TemplateProcessing"},
                                        {"single", {{{"SpecialToken", {{"id", "x"}}}}}},
                                        {"special_tokens", {{"x", {{"ids", {99'999}}}}}}}),
              AllOf(HasSubstr("an id of x is 99999"), HasSubstr("expected a whole number")));
  EXPECT_THAT(wrong("/post_processor", {{"type", "Sequence"}, {"processors", {1}}}),
              HasSubstr("expected a JSON object"));
  EXPECT_LT(wrong("/model/merges/3", std::string(200'000, 'x')).size(), 1000U);
}

TEST(Tokenizer, what_is_not_there_is_named) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { Tokenizer::load(folder / "none"); }),
              HasSubstr("does not exist"));
  EXPECT_THAT(message_of<ConfigError>([&] { Tokenizer::load(folder.path()); }),
              HasSubstr("holds no tokenizer.json"));
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_THAT(message_of<DataError>([&] { Tokenizer::load(folder / "loop"); }),
              HasSubstr((folder / "loop").string()));
  folder.write("tokenizer.json", "{\"model\": \n tru}");
  EXPECT_THAT(message_of<DataError>([&] { Tokenizer::load(folder.path()); }), HasSubstr("line 2"));
  const Tokenizer tokenizer = Tokenizer::load(fixture("gpt2_tokenizer.json"));
  EXPECT_THROW(tokenizer.token_of_id(701), DataError);
  EXPECT_THROW(tokenizer.token_of_id(-1), DataError);
}

TEST(Tokenizer, a_byte_without_a_token_is_an_error_not_lost) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
  json["model"]["vocab"].erase("~");
  json["model"]["vocab"]["never"] = 93;
  const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
  EXPECT_EQ(tokenizer.encode("no tilde"), Tokenizer::load(fixture("gpt2_tokenizer.json")).encode("no tilde"));
  EXPECT_THAT(message_of<DataError>([&] { tokenizer.encode("a ~ b"); }), HasSubstr("byte 126"));
}

// utf8proc 2.8 composes U+11A7 with a syllable before it, and so loses it.
TEST(Tokenizer, a_hangul_letter_that_composes_with_nothing_is_kept) {
  const Tokenizer tokenizer = Tokenizer::load(fixture("qwen_tokenizer.json"));
  const std::vector<int32_t> ids = tokenizer.encode("\uac00\u11a7\u11a8 \uac00\u11a8");
  EXPECT_EQ(ids, tokenizer.encode("\uac00\u11a7\u11a8 \uac01"));
  EXPECT_NE(ids, tokenizer.encode("\uac00\u11a8 \uac01"));
}

TEST(Tokenizer, wrong_utf8_is_read_as_python_replaces_it) {
  // bytes.decode("utf-8", errors="replace") of each, from Python.
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\xff"
       "b",
       "a\uFFFDb"},
      {"\xc3", "\uFFFD"},
      {"\xe4\xb8", "\uFFFD"},
      {"\xe4\xb8"
       "a",
       "\uFFFDa"},
      {"\xc0\xaf", "\uFFFD\uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xf0\x9f\x98", "\uFFFD"},
      {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\uFFFD\U0001F600"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\x80\xe4\xb8\xad\x80", "\uFFFD中\uFFFD"},
  };
  const Tokenizer tokenizer = Tokenizer::load(fixture("qwen_tokenizer.json"));
  for (const auto& [wrong, replaced] : cases) {
    EXPECT_EQ(with_replacements(wrong), replaced);
    EXPECT_EQ(tokenizer.encode(wrong), tokenizer.encode(replaced));
    EXPECT_FALSE(is_valid_utf8("12345678" + wrong));
    EXPECT_TRUE(is_valid_utf8("12345678" + replaced));
  }
}

TEST(Tokenizer, end_of_text_comes_from_the_files_beside_it_in_order) {
  const TemporaryFolder folder;
  std::filesystem::copy_file(fixture("qwen_tokenizer.json"), folder / "tokenizer.json");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const auto id = [&](const char* token) { return tokenizer.id_of_token(token).value(); };
  EXPECT_EQ(tokenizer.end_of_text_id(), id("<|endoftext|>"));
  folder.write("generation_config.json", Json{{"eos_token_id", 65}}.dump());
  EXPECT_EQ(tokenizer.end_of_text_id(), 65);
  folder.write("config.json", Json{{"eos_token_id", {id("<|im_end|>"), 5}}}.dump());
  EXPECT_EQ(tokenizer.end_of_text_id(), id("<|im_end|>"));
  folder.write("tokenizer_config.json", Json{{"eos_token", {{"content", "<|im_start|>"}}}}.dump());
  EXPECT_EQ(tokenizer.end_of_text_id(), id("<|im_start|>"));
  folder.write("tokenizer_config.json", Json{{"eos_token", "<none>"}}.dump());
  EXPECT_THAT(message_of<ConfigError>([&] { tokenizer.end_of_text_id(); }), HasSubstr("<none>"));
}

// Expected values: the library's BertNormalizer and BertPreTokenizer.
TEST(Tokenizer, text_of_bert_is_rewritten_as_in_unicode_8) {
  EXPECT_EQ(bert_text("e\u0301 \u1734 a\u1abf", {}), "e  a\u1abf") << "a mark of Unicode 13 stays";
  EXPECT_EQ(bert_text("\U0002b830\U0002b930", {}), "\U0002b830 \U0002b930 ");
  EXPECT_EQ(bert_text("\u0130\ua7ce", {.strip_accents = false}), "i\u0307\ua7cf");
  EXPECT_EQ(bert_text("a\u0085b\u2028c\ufffd", {}), "ab c");
  EXPECT_TRUE(is_bert_punctuation(0x166D));
  EXPECT_FALSE(is_bert_punctuation(0x2E52)) << "punctuation since Unicode 14";
}

TEST(Tokenizer, a_word_of_bert_may_be_as_long_as_the_file_says) {
  const Tokenizer tokenizer = Tokenizer::load(fixture("bert_cased_tokenizer.json"));  // 12 characters
  const auto unknown = tokenizer.id_of_token("[UNK]").value();
  EXPECT_THAT(tokenizer.encode(std::string(12, 'a')), ::testing::Not(::testing::Contains(unknown)));
  EXPECT_EQ(tokenizer.encode(std::string(13, 'a')).at(1), unknown);
}

// A BERT file has no eos_token. Its texts end with [SEP] already.
TEST(Tokenizer, what_ends_a_text_of_bert_is_its_separator) {
  const Tokenizer tokenizer = Tokenizer::load(fixture("bert_tokenizer.json"));
  EXPECT_EQ(tokenizer.end_of_text_id(), tokenizer.id_of_token("[SEP]"));
  EXPECT_EQ(tokenizer.encode("a text").front(), tokenizer.id_of_token("[CLS]"));
  EXPECT_EQ(tokenizer.encode("a text").back(), tokenizer.end_of_text_id());
}

TEST(Tokenizer, without_any_end_of_text_says_where_to_give_one) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
  json["added_tokens"] = Json::array();
  const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
  EXPECT_THAT(message_of<ConfigError>([&] { tokenizer.end_of_text_id(); }),
              HasSubstr("tokenizer_config.json"));
}

TEST(ByteLevelTokenizer, ids_are_the_bytes_of_every_text) {
  const TemporaryFolder folder;
  write_byte_level_tokenizer(folder.path(), 320);
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 320);
  EXPECT_EQ(tokenizer.end_of_text_id(), 256);
  EXPECT_EQ(tokenizer.id_of_token("<|pad|>"), 257);
  EXPECT_EQ(tokenizer.encode("a\n \xe4\xb8\xad<|endoftext|>z"),
            (std::vector<int32_t>{97, 10, 32, 0xe4, 0xb8, 0xad, 256, 122}));
  std::string every;
  for (uint32_t code = 0; code < 0x3000; ++code) append_character(every, code);
  const std::span bytes(reinterpret_cast<const uint8_t*>(every.data()), every.size());
  EXPECT_EQ(tokenizer.encode(every), std::vector<int32_t>(bytes.begin(), bytes.end()));
  EXPECT_THROW(write_byte_level_tokenizer(folder.path(), 257), ConfigError);
}

// "$" is punctuation to one version and none to another, and U+0363 a letter.
TEST(SplitPattern, a_set_of_characters_that_is_another_in_the_library_is_refused) {
  const auto message = [](const std::string& pattern) {
    return message_of<ConfigError>([&] { SplitPattern(pattern, "tokenizer.json"); });
  };
  for (const char* other : {"[:punct:]", "[:^punct:]", "[:alpha:]", "[:alnum:]", "[:lower:]"})
    EXPECT_THAT(message(cat("a|[^", other, "]+")),
                HasSubstr(cat("split pattern has ", other, ", which is another set of characters")));
  for (const char* other : {R"(\p{Alpha})", R"(\P{alphabetic})", R"(\p{^Al-num})", R"(\p{Lowercase})",
                            R"(\p{Word})", R"(\p{ID_Continue})", R"(\p{Sentence_Terminal})"})
    EXPECT_THAT(message(cat("[", other, "]+")), HasSubstr("which is another set of characters"));
  for (const char* same :
       {R"([[:space:][:upper:][:word:]]\w)", R"(\p{Punct}|\p{Upper}|\p{L})", R"(\\p\{Alpha\})"})
    EXPECT_EQ(message(same), "no error") << same;
}

// Each list is of DeepSeek's pattern, where it comes nearest to a newer letter or to the older one that stands for it.
TEST(SplitPattern, a_letter_newer_than_unicode_14_is_in_no_list_of_older_ones) {
  const auto matches = [](const char* pattern, uint32_t code) {
    std::string text;
    append_character(text, code);
    bool found = false;
    SplitPattern(pattern, "tokenizer.json").split(text, [&](std::string_view, bool is_match) {
      found |= is_match;
    });
    return found;
  };
  const auto codes = std::to_array<uint32_t>(
      {0x1C89, 0x1C8A, 0xA7CB, 0xA7CD, 0xA7DA, 0xA7DB, 0xA7DC, 0x10D50, 0x10D70, 0x1DF25});
  for (const uint32_t code : codes) {
    EXPECT_FALSE(
        matches("[\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1E00-\u1F15\u2C00-\u2C7B\uA640-\uA66D"
                "\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\U00010400-\U0001044F]",
                code))
        << code;
    EXPECT_EQ(matches("[\u0800-\u4E00]", code), code < 0x4E00) << code;
    EXPECT_TRUE(matches("\\p{L}", code)) << code;
  }
  EXPECT_TRUE(matches("\\p{Lu}", 0xA7DA));
  EXPECT_TRUE(matches("\\p{Ll}", 0xA7DB));
}

// Zeros that take no memory.
TEST(SplitPattern, a_text_longer_than_oniguruma_counts_is_refused) {
  const size_t bytes = size_t{1} << 31;
  void* zeros = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) GTEST_SKIP() << "no address space of 2 GiB";
  int64_t pieces = 0;
  const std::string message = message_of<DataError>([&] {
    SplitPattern("a+", "tokenizer.json")
        .split({static_cast<const char*>(zeros), bytes}, [&](std::string_view, bool) { ++pieces; });
  });
  ::munmap(zeros, bytes);
  EXPECT_THAT(message, AllOf(HasSubstr("2147483648 bytes"), HasSubstr("2147483647 bytes"),
                             HasSubstr("split the document")));
  EXPECT_EQ(pieces, 0);
}

}  // namespace
}  // namespace trireme
