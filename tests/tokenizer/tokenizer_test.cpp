// What the tokenizer refuses, by name; wrong UTF-8; the end-of-text token; the byte-level tokenizer of tiny
// models.
#include "trireme/tokenizer/tokenizer.h"

#include <sys/mman.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
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

// The message of loading the GPT-2 fixture with one value changed.
template <typename E>
std::string refusal(const std::string& pointer, const Json& value) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
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
  EXPECT_THAT(refused("/model/type", "WordPiece"),
              AllOf(HasSubstr("WordPiece, the kind of BERT"), HasSubstr("docs/data.md")));
  EXPECT_THAT(refused("/model/type", "Unigram"), HasSubstr("Unigram, the kind of T5"));
  EXPECT_THAT(refused("/normalizer", typed("NFKC")), HasSubstr("normalizer is NFKC"));
  EXPECT_THAT(
      refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {typed("NFC"), typed("Lowercase")}}}),
      HasSubstr("normalizer is Lowercase"));
  EXPECT_THAT(refused("/pre_tokenizer", typed("Metaspace")), HasSubstr("pre_tokenizer is Metaspace"));
  EXPECT_THAT(refused("/pre_tokenizer", nullptr), HasSubstr("does not end in ByteLevel"));
  EXPECT_THAT(refused("/pre_tokenizer",
                      {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Contiguous"}}),
              HasSubstr("the behavior \"Contiguous\", not"));
  EXPECT_THAT(refused("/pre_tokenizer",
                      {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}}),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("split pattern is not valid")));
  EXPECT_THAT(refused("/post_processor", typed("BertProcessing")),
              HasSubstr("post_processor is BertProcessing"));
  EXPECT_THAT(refused("/decoder", typed("Metaspace")), HasSubstr("decoder is Metaspace"));
  EXPECT_THAT(refused("/model/dropout", 0.1), HasSubstr("BPE has dropout 0.1"));
  EXPECT_THAT(refused("/model/unk_token", "<unk>"), HasSubstr("BPE has unk_token \"<unk>\""));
  EXPECT_THAT(refused("/model/byte_fallback", true),
              AllOf(HasSubstr("byte_fallback"), HasSubstr("Mistral and Gemma")));
  EXPECT_THAT(refused("/model/continuing_subword_prefix", "##"), HasSubstr("continuing_subword_prefix"));
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

// The refusal of Mistral's own file names its kind before any of its parts.
TEST(Tokenizer, another_kind_is_named_before_its_parts_with_what_works_now) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", {typed("Prepend"), typed("Replace")}}};
  json["pre_tokenizer"] = nullptr;
  json["model"]["byte_fallback"] = true;
  json["model"]["unk_token"] = "<unk>";
  const auto file = folder.write("tokenizer.json", json.dump());
  EXPECT_THAT(message_of<ConfigError>([&] { Tokenizer::load(file); }),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("the kind of Llama-2, Mistral and Gemma"),
                    HasSubstr("PREFIX.bin and PREFIX.idx"), HasSubstr("docs/data.md")));
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
  for (const char* pointer : {"/model/type", "/model/vocab", "/model/merges", "/model/ignore_merges",
                              "/added_tokens", "/added_tokens/0/special", "/added_tokens/0/id",
                              "/pre_tokenizer/type", "/pre_tokenizer/use_regex", "/decoder/type"})
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
  folder.write("tokenizer.json", "{\"model\": \n tru}");
  EXPECT_THAT(message_of<DataError>([&] { Tokenizer::load(folder.path()); }), HasSubstr("line 2"));
  const Tokenizer tokenizer = Tokenizer::load(fixture("gpt2_tokenizer.json"));
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{701}), DataError);
  EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{-1}), DataError);
}

TEST(Tokenizer, a_byte_without_a_token_is_an_error_not_lost) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
  json["model"]["vocab"].erase("~");
  json["model"]["vocab"]["never"] = 93;
  const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("no tilde")), "no tilde");
  EXPECT_THAT(message_of<DataError>([&] { tokenizer.encode("a ~ b"); }), HasSubstr("byte 126"));
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

TEST(Tokenizer, without_any_end_of_text_says_where_to_give_one) {
  const TemporaryFolder folder;
  Json json = read_json(fixture("gpt2_tokenizer.json"));
  json["added_tokens"] = Json::array();
  const Tokenizer tokenizer = Tokenizer::load(folder.write("tokenizer.json", json.dump()));
  EXPECT_THAT(message_of<ConfigError>([&] { tokenizer.end_of_text_id(); }),
              HasSubstr("tokenizer_config.json"));
}

TEST(ByteLevelTokenizer, ids_are_the_bytes_and_every_text_comes_back) {
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
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(every)), every);
  EXPECT_EQ(tokenizer.encode(every).size(), every.size());
  EXPECT_THROW(write_byte_level_tokenizer(folder.path(), 257), ConfigError);
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
