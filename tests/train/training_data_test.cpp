// Which tokens the ranks of a run open, where their machines do not see the same files.
#include "trireme/train/training_data.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/base/machine_identity.h"
#include "trireme/comm/thread_world.h"
#include "trireme/data/tokenize_corpus.h"

#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TinyRun;

// A run with a text and a set, and what a rank opens that sees `input`.
class OpenTokens : public ::testing::Test {
 protected:
  OpenTokens() {
    run_.with_text("run", "Some text to tokenize.",
                   testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json");
  }
  TextToTokenize seen(const fs::path& input) const {
    return {.input = input,
            .tokenizer_from = run_.model(),
            .prefix = run_.folder() / "data/train",
            .corpus = {.vocab_size = 704}};
  }

  fs::path nowhere() const { return run_.folder() / "nowhere"; }

  // Rank 1 of three finds `elsewhere` where the others find tokens.
  void expect_rank_1_is_named(const TextToTokenize& by_others, const fs::path& elsewhere,
                              const std::string& doing = "opening") const {
    TextToTokenize by_rank_1 = by_others;
    by_rank_1.input = by_rank_1.prefix = elsewhere;
    std::vector<std::string> told(3);
    run_ranks_as_threads(3, [&](World& world) {
      const auto group = world.make_group("all", {{0, 1, 2}});
      Agreement agreement(*group, at::kCPU);
      const int rank = world.rank();
      told[static_cast<size_t>(rank)] =
          message_of<ConfigError>([&] { open_tokens(rank == 1 ? by_rank_1 : by_others, rank, agreement); });
    });
    EXPECT_THAT(told[1], AllOf(HasSubstr("rank 1 on " + host_name()), HasSubstr(elsewhere.string()),
                               HasSubstr("rank 0")));
    for (const size_t rank : {0, 2}) EXPECT_THAT(told[rank], HasSubstr("rank 1 failed while " + doing));
  }

  TinyRun run_;
};

TEST_F(OpenTokens, of_a_set_that_one_rank_does_not_see_ends_all_and_names_that_rank) {
  expect_rank_1_is_named(seen(run_.tokens()), nowhere());
}

TEST_F(OpenTokens, of_a_text_that_one_rank_does_not_see_ends_all_and_names_that_rank) {
  expect_rank_1_is_named(seen(run_.text()), nowhere());
}

TEST_F(OpenTokens, of_a_set_that_is_another_for_one_rank_ends_all_and_names_that_rank) {
  const TinyRun other(170);
  expect_rank_1_is_named(seen(run_.tokens()), other.tokens(), "comparing");
}

TEST_F(OpenTokens, of_a_set_that_has_as_many_other_tokens_for_one_rank_ends_all_and_names_that_rank) {
  const fs::path other = run_.folder() / "other";
  for (const char* end : {".idx", ".bin"}) fs::copy_file(run_.tokens().string() + end, other.string() + end);
  std::fstream(other.string() + ".bin", std::ios::binary | std::ios::in | std::ios::out).seekp(100).put(7);
  expect_rank_1_is_named(seen(run_.tokens()), other, "comparing");
}

TEST_F(OpenTokens, of_a_set_whose_ids_mean_other_tokens_in_the_model_are_refused) {
  TrainOptions options = run_.options("run");
  options.context_stages = "16:2";
  options.train_file = run_.folder() / "set";
  std::ofstream(run_.text()) << std::string(200, 'a');
  tokenize_corpus(Tokenizer::load(run_.model()), {run_.text()}, options.train_file, {});
  EXPECT_EQ(testing::train_on_ranks(1, options).outcome.steps, 2);
  Json tokenizer = read_json(run_.model() / "tokenizer.json");
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["b"]);
  std::ofstream(run_.model() / "tokenizer.json") << tokenizer.dump();
  options.output_dir = run_.folder() / "other";
  EXPECT_THAT(testing::problem_of(options), AllOf(HasSubstr("set.set.json"), HasSubstr("mean other tokens")));
}

// Tokens were added to the tokenizer, and the model was not made larger.
TEST_F(OpenTokens,
       with_an_id_that_the_model_has_no_row_for_are_refused_at_once_and_such_a_tokenizer_is_told) {
  const fs::path file = run_.model() / "tokenizer.json";
  Json tokenizer = read_json(file);
  Json token = tokenizer["added_tokens"][0];
  for (int id = 701; id <= 704; ++id) {  // of 704 rows, the last is 703
    token.update({{"id", id}, {"content", cat("<new ", id, ">")}});
    tokenizer["added_tokens"].push_back(token);
  }
  std::ofstream(file) << tokenizer.dump();
  TrainOptions options = run_.options("run");
  options.context_stages = "16:2";
  options.train_file = run_.folder() / "set";
  const auto tokenize = [&](const std::string& text) {
    std::ofstream(run_.text()) << text;
    tokenize_corpus(Tokenizer::load(run_.model()), {run_.text()}, options.train_file, {});
  };
  tokenize(std::string(200, 'a') + "<new 703>");
  EXPECT_THAT(
      testing::train_on_ranks(2, options).output,
      AllOf(
          HasSubstr("has 1 token beyond the model's vocabulary of 704 ids, the first is 704, \"<new 704>\""),
          HasSubstr("model.resize_token_embeddings(len(tokenizer))")));
  tokenize(std::string(200, 'a') + "<new 704>");
  options.output_dir = run_.folder() / "other";
  EXPECT_THAT(testing::problem_of(options), HasSubstr("set.set.json: the set holds the id 704"));
}

TEST_F(OpenTokens, of_an_input_at_which_the_system_cannot_look_are_refused_by_name) {
  TrainOptions options = run_.options("run");
  options.train_file = run_.folder() / "loop";
  fs::create_symlink("loop.bin", run_.folder() / "loop.bin");
  EXPECT_THAT(testing::problem_of<DataError>(options), HasSubstr((run_.folder() / "loop.bin").string()));
}

TEST_F(OpenTokens, of_a_text_whose_bad_lines_are_skipped_are_another_set) {
  TrainOptions options = run_.options("run");
  options.train_file = run_.folder() / "lines.jsonl";
  std::ofstream(options.train_file) << "{}\n{\"text\": \"" << std::string(400, 'x') << "\"}\n";
  options.context_stages = "16:2";
  EXPECT_THAT(testing::problem_of<DataError>(options, 2),
              AnyOf(HasSubstr("lines.jsonl:1: has no"), HasSubstr("rank 0 failed")));
  options.samples.corpus.on_bad_record = OnBadRecord::skip;
  const testing::TinyOutcome run = testing::train_on_ranks(2, options);
  EXPECT_EQ(run.outcome.steps, 2);
  EXPECT_THAT(run.output, AllOf(HasSubstr("lines that are no documents, skipped: 1"),
                                HasSubstr("lines.jsonl:1: has no \"text\"")));
  const Json state = read_json(run.outcome.checkpoint / "trainer_state.json");
  EXPECT_EQ(state["data"]["train"]["on_bad_record"], "skip");
  options.samples.corpus.on_bad_record = OnBadRecord::stop;
  options.resume_from_checkpoint = "true";
  EXPECT_THAT(testing::problem_of(options), HasSubstr("on_bad_record \"skip\" -> \"stop\""));
}

TEST_F(OpenTokens, of_a_folder_tell_what_is_not_in_them_at_every_start) {
  TrainOptions options = run_.options("run");
  options.train_file = run_.folder() / "texts";
  fs::create_directory(options.train_file);
  std::ofstream(options.train_file / "a.txt") << std::string(400, 'x') << "\xff";
  std::ofstream(options.train_file / "b.gz") << "\x1f\x8b";
  options.context_stages = "16:2";
  const std::string first = testing::train_on_ranks(2, options).output;
  EXPECT_THAT(first, AllOf(HasSubstr("texts that are left out: 1"), HasSubstr("b.gz is"),
                           HasSubstr("1 documents, "), HasSubstr("U+FFFD: 1 documents")));
  options.overwrite_output_dir = true;
  EXPECT_THAT(testing::train_on_ranks(2, options).output, HasSubstr("b.gz is"));
}

TEST_F(OpenTokens, of_a_folder_leave_out_the_runs_that_lie_in_it) {
  TrainOptions options = run_.options("texts/run");
  options.train_file = run_.folder() / "texts";
  fs::create_directory(options.train_file);
  std::ofstream(options.train_file / "a.txt") << std::string(400, 'x');
  options.context_stages = "16:4";
  EXPECT_THAT(testing::train_on_ranks(1, options, 2).output,
              HasSubstr((options.train_file / "run").string() + " is a run's folder"));
  TrainOptions beside = options;
  beside.output_dir = options.train_file / "deep/beside";
  EXPECT_EQ(testing::train_on_ranks(1, beside).outcome.steps, 4);
  options.resume_from_checkpoint = "true";
  const TrainOutcome resumed = testing::train_on_ranks(1, options).outcome;
  EXPECT_EQ(resumed.steps, 4);
  EXPECT_EQ(read_json(resumed.checkpoint / "trainer_state.json")["data"]["train"]["files"], 1);
}

TEST_F(OpenTokens, of_a_folder_to_which_the_run_itself_writes_are_refused) {
  TrainOptions options = run_.options("texts");
  fs::create_directories(options.output_dir / "data");
  std::ofstream(options.output_dir / "data/a.txt") << std::string(400, 'x');
  fs::create_directory_symlink("texts", run_.folder() / "link");
  for (const char* text : {"texts", "link/data"}) {
    options.train_file = run_.folder() / text;
    EXPECT_THAT(testing::problem_of(options), AllOf(HasSubstr("--train_file " + options.train_file.string()),
                                                    HasSubstr("choose another --output_dir")));
  }
  options.train_file = run_.tokens();
  options.eval_file = options.output_dir;
  EXPECT_THAT(testing::problem_of(options), HasSubstr("--eval_file "));
  EXPECT_FALSE(fs::exists(options.output_dir / "run.lock")) << "the text is as it was";
}

TEST_F(OpenTokens, of_a_text_in_a_working_folder_whose_name_is_not_utf_8_are_found_again) {
  struct BackAtTheEnd {
    const fs::path before = fs::current_path();
    ~BackAtTheEnd() {
      std::error_code ignored;
      fs::current_path(before, ignored);
    }
  };
  const BackAtTheEnd back{};
  const fs::path here = run_.folder() / "caf\xe9";
  fs::create_directory(here);
  std::ofstream(here / "a.txt") << std::string(400, 'x');
  fs::current_path(here);
  TrainOptions options = run_.options("run");
  options.train_file = "a.txt";
  options.context_stages = "16:4";
  testing::train_on_ranks(1, options, 2);
  fs::remove(here / "a.txt");
  options.resume_from_checkpoint = "true";
  const testing::TinyOutcome resumed = testing::train_on_ranks(1, options);
  EXPECT_EQ(resumed.outcome.steps, 4);
  EXPECT_THAT(resumed.output, HasSubstr("the text a.txt is gone"));
}

TEST_F(OpenTokens, made_with_another_end_of_text_token_are_others) {
  TrainOptions options = run_.options("run");
  options.train_file = run_.folder() / "text.txt";
  std::ofstream(options.train_file) << std::string(400, 'x');
  options.context_stages = "16:2";
  const auto source = [&] {
    const Json state =
        read_json(testing::train_on_ranks(1, options).outcome.checkpoint / "trainer_state.json");
    return state["data"]["train"];
  };
  const Json before = source();
  std::ofstream(options.model_dir / "tokenizer_config.json") << R"({"eos_token": "a"})";
  options.overwrite_output_dir = true;
  const Json after = source();
  EXPECT_NE(before["end_of_text"], after["end_of_text"]);
  EXPECT_NE(before["digest"], after["digest"]);
}

TEST(TooLittleText, is_named_and_not_the_tokens_that_were_made_of_it) {
  const TinyRun run;
  const TrainOptions options = run.with_text(
      "run", "Too short.", testing::source_folder() / "tests/tokenizer/fixtures/gpt2_tokenizer.json");
  EXPECT_THAT(testing::problem_of<DataError>(options), HasSubstr(run.text().string() + ": there are "));
}

TEST_F(OpenTokens, are_those_of_what_rank_0_finds_whatever_another_rank_finds) {
  std::vector<int64_t> tokens(2);
  run_ranks_as_threads(2, [&](World& world) {
    const auto group = world.make_group("all", {{0, 1}});
    Agreement agreement(*group, at::kCPU);
    const TextToTokenize text = seen(world.rank() == 0 ? run_.text() : run_.tokens());
    tokens[static_cast<size_t>(world.rank())] = open_tokens(text, world.rank(), agreement)->tokens();
  });
  EXPECT_GT(tokens[0], 0);
  EXPECT_EQ(tokens[0], tokens[1]);
}

}  // namespace
}  // namespace trireme
