// What a model's files say about its samples, and which flags contradict them.
#include "trireme/train/sample_options.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

ModelConfig decoder() {
  ModelConfig config;
  config.vocab_size = 100;
  return config;
}

ModelConfig encoder() {
  ModelConfig config = decoder();
  config.causality = Causality::full;
  return config;
}

void write_tokenizer(const TemporaryFolder& folder, const std::string& added_tokens) {
  std::ofstream(folder.path() / "tokenizer.json") << R"({"added_tokens": )" << added_tokens << "}";
}

TEST(SampleOptions, an_encoder_masks_with_its_tokenizers_mask_token) {
  for (const char* name : {"[MASK]", "<mask>"}) {
    const TemporaryFolder folder;
    write_tokenizer(folder, R"([{"id": 3, "content": "[PAD]"}, {"id": 41, "content": ")" + std::string(name) +
                                R"(", "special": true}])");
    const SampleOptions resolved = resolve_samples({}, encoder(), folder.path());
    EXPECT_EQ(resolved.mask_token_id, 41);
    EXPECT_EQ(resolved.mlm_probability, 0.15);
    const LoaderOptions loader = sample_loader_options(resolved, encoder());
    ASSERT_TRUE(loader.masked_tokens.has_value());
    EXPECT_EQ(loader.masked_tokens->mask_token_id, 41);
    EXPECT_EQ(loader.masked_tokens->vocab_size, 100);
    EXPECT_EQ(loader.masked_tokens->probability, 0.15);
    EXPECT_EQ(loader.packing.kind, Packing::documents);
  }
}

TEST(SampleOptions, what_is_given_stands_before_what_is_found) {
  const TemporaryFolder folder;  // no tokenizer.json
  SampleOptions given;
  given.packing.kind = Packing::none;
  given.mlm_probability = 0.4;
  given.mask_token_id = 7;
  const LoaderOptions loader =
      sample_loader_options(resolve_samples(given, encoder(), folder.path()), encoder());
  EXPECT_EQ(loader.packing.kind, Packing::none);
  EXPECT_EQ(loader.masked_tokens->probability, 0.4);
  EXPECT_EQ(loader.masked_tokens->mask_token_id, 7);
}

TEST(SampleOptions, windows_have_no_long_documents) {
  SampleOptions given;
  given.packing.long_documents = LongDocuments::skip;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_samples(given, decoder(), ""); }),
              HasSubstr("--long_documents skip needs --packing best_fit or none; --packing documents fills"));
  given.packing.kind = Packing::best_fit;
  const SampleOptions resolved = resolve_samples(given, decoder(), "");
  EXPECT_EQ(sample_loader_options(resolved, decoder()).packing.long_documents, LongDocuments::skip);
}

TEST(SampleOptions, a_decoder_masks_nothing_and_refuses_to_be_told_how) {
  const TemporaryFolder folder;
  const SampleOptions resolved = resolve_samples({}, decoder(), folder.path());
  EXPECT_FALSE(resolved.mlm_probability.has_value());
  EXPECT_FALSE(sample_loader_options(resolved, decoder()).masked_tokens.has_value());
  SampleOptions probability, token;
  probability.mlm_probability = 0.15;
  token.mask_token_id = 7;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_samples(probability, decoder(), folder.path()); }),
              AllOf(HasSubstr("--mlm_probability"), HasSubstr("leave it out")));
  EXPECT_THAT(message_of<ConfigError>([&] { resolve_samples(token, decoder(), folder.path()); }),
              HasSubstr("--mask_token_id"));
}

TEST(SampleOptions, an_encoder_without_a_mask_token_or_with_an_impossible_one_is_refused) {
  const TemporaryFolder folder;
  const auto refusal = [&](const SampleOptions& options) {
    return message_of<ConfigError>([&] { resolve_samples(options, encoder(), folder.path()); });
  };
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("no such file"), HasSubstr("--mask_token_id")));
  write_tokenizer(folder, R"([{"id": 3, "content": "[PAD]"}])");
  EXPECT_THAT(refusal({}), AllOf(HasSubstr("[MASK]"), HasSubstr("--mask_token_id")));
  SampleOptions options;
  options.mask_token_id = 100;
  EXPECT_THAT(refusal(options), HasSubstr("vocabulary of 100"));
  options.mask_token_id = -1;
  EXPECT_THAT(refusal(options), HasSubstr("-1"));
  options.mask_token_id = 3;
  for (const double probability : {0.0, -0.1, 1.5}) {
    options.mlm_probability = probability;
    EXPECT_THAT(refusal(options), HasSubstr("--mlm_probability"));
  }
  options.mlm_probability = 1;
  EXPECT_EQ(refusal(options), "no error");
}

TEST(SampleOptions, padding_is_the_pad_token_else_the_end_of_text_else_0) {
  ModelConfig config = decoder();
  EXPECT_EQ(sample_loader_options({}, config).pad_token_id, 0);
  config.eos_token_id = 2;
  EXPECT_EQ(sample_loader_options({}, config).pad_token_id, 2);
  config.pad_token_id = 5;
  EXPECT_EQ(sample_loader_options({}, config).pad_token_id, 5);
  config.pad_token_id = -1;  // as some Llama configs say "none"
  EXPECT_EQ(sample_loader_options({}, config).pad_token_id, 2);
  config.eos_token_id = 100;
  EXPECT_EQ(sample_loader_options({}, config).pad_token_id, 0);
}

}  // namespace
}  // namespace trireme
