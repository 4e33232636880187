// The table of exchanges, as a program reads it and as people do.
#include "bench/comm/bench_comm.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"

#include "tests/engine/tiny_model.h"
#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string output_of(std::vector<std::string> more) {
  more.insert(more.end(), {"--threads", "2", "--repeats", "1", "--device", "cpu"});
  ::testing::internal::CaptureStdout();
  const int code = run_bench_comm(more);
  std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0);
  return text;
}

std::string refusal(const std::vector<std::string>& arguments) {
  return testing::message_of<ConfigError>([&] { run_bench_comm(arguments); });
}

std::vector<std::string> names(const Json& methods) {
  std::vector<std::string> all;
  for (const Json& method : methods) all.push_back(method.at("description"));
  return all;
}

TEST(BenchComm, counts_every_method_that_four_ranks_have) {
  const Json line = parse_json(output_of({"--ranks_as_threads", "4", "--heads", "7", "--kv_heads", "1",
                                          "--head_dim", "8", "--tokens", "42", "--dtype", "bf16", "--json"}),
                               "output");
  EXPECT_THAT(names(line.at("methods")),
              ElementsAre("ulysses 4", "ring 4", "gather 4", "hybrid 2x2", "megatron 4"));
  for (const Json& method : line.at("methods")) {
    EXPECT_EQ(method.at("sent_bytes"), method.at("formula_bytes"));
    EXPECT_GT(method.at("sent_bytes").at("forward"), 0);
    EXPECT_GT(method.at("model_s"), 0);
    EXPECT_GT(method.at("exchange_s").at("median"), 0);
    EXPECT_GE(method.at("layer_s").at("median"), method.at("exchange_s").at("median"));
  }
  // 11 tokens a rank stay as ranks are added.
  ASSERT_EQ(line.at("weak_scaling").size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    const Json& row = line.at("weak_scaling").at(i);
    const int64_t ranks = int64_t{1} << i;
    EXPECT_EQ(row.at("ranks"), ranks);
    EXPECT_EQ(row.at("tokens"), 11 * ranks);
    EXPECT_EQ(row.at("measured"), true);
    // Megatron: 4 + 6 exchanges of 7 x 8 wide tokens of 2 bytes.
    EXPECT_EQ(row.at("sent_bytes").at("megatron"), 10 * 11 * 7 * 8 * 2 * (ranks - 1));
  }
  EXPECT_EQ(line.at("link").at("timed").size(), 7U);
}

TEST(BenchComm, takes_the_heads_of_a_model_and_the_hybrid_that_is_asked_for) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << testing::tiny_llama_config(4, 2).dump();
  const Json line =
      parse_json(output_of({"--model_name_or_path", folder.path().string(), "--ranks_as_threads", "4",
                            "--tokens", "32", "--methods", "hybrid,ulysses", "--ring", "4", "--ring_method",
                            "gather", "--head_chunks", "2", "--json"}),
                 "output");
  EXPECT_EQ(line.at("heads"), 4);
  EXPECT_EQ(line.at("kv_heads"), 2);
  EXPECT_EQ(line.at("hidden"), testing::tiny_llama_config(4, 2).at("hidden_size"));
  EXPECT_THAT(names(line.at("methods")), ElementsAre("hybrid 1x4 (gather)", "ulysses 4"));
}

TEST(BenchComm, prints_tables_and_says_what_it_leaves_out) {
  const std::string text = output_of(
      {"--ranks_as_threads", "3", "--heads", "2", "--kv_heads", "1", "--head_dim", "8", "--tokens", "16"});
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("16 tokens, batch 1, 2 query and 1 key/value heads of 8, hidden 16, fp32, 3 ranks"),
            HasSubstr("left out: ulysses (2 query heads for 3 ranks"), HasSubstr("left out: hybrid"),
            HasSubstr("an all-to-all here:"), HasSubstr("ring 3"), HasSubstr("gather 3"),
            HasSubstr("sequence and ranks grow together")));
  EXPECT_THAT(output_of({"--ranks_as_threads", "1", "--tokens", "16"}),
              HasSubstr("one rank: nothing travels"));
}

TEST(BenchComm, wrong_requests_are_refused_with_what_would_work) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"--ranks_as_threads", "4", "--device", "cpu"});
    return refusal(more);
  };
  EXPECT_THAT(with({"--ulysses", "3", "--ring", "1"}),
              AllOf(HasSubstr("3 x --ring 1"), HasSubstr("1 x 4, 2 x 2, 4 x 1")));
  EXPECT_THAT(with({"--ulysses", "3"}), HasSubstr("1 x 4, 2 x 2, 4 x 1"));
  EXPECT_THAT(with({"--methods", "ulysses,rings"}), AllOf(HasSubstr("'rings'"), HasSubstr("megatron")));
  EXPECT_THAT(with({"--methods", "ring", "--ulysses", "2"}), HasSubstr("the hybrid's"));
  EXPECT_THAT(with({"--methods", "ulysses", "--heads", "3", "--kv_heads", "3"}),
              HasSubstr("3 query heads for 4 ranks"));
  EXPECT_THAT(with({"--heads", "6", "--kv_heads", "4"}), HasSubstr("divisor"));
  EXPECT_THAT(with({"--tokens", "3"}), HasSubstr("one token a rank"));
  EXPECT_THAT(with({"--repeats", "0"}), HasSubstr("--repeats"));
  EXPECT_THAT(with({"--model_name_or_path", "m", "--heads", "4"}), HasSubstr("contradict"));
  EXPECT_THAT(refusal({"--ranks_as_threads", "3", "--methods", "hybrid", "--device", "cpu"}),
              HasSubstr("no product U x R"));
  EXPECT_THAT(refusal({"--ranks_as_threads", "0"}), HasSubstr("from 1 to"));
}

}  // namespace
}  // namespace trireme
