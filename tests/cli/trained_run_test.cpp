// What train, eval and export do with their flags, on a run of two steps: its config.json and metrics, an
// evaluation of its checkpoint, and the model that is exported from it.
#include <cstdlib>
#include <fstream>
#include <optional>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/export.h"
#include "trireme/cli/init.h"
#include "trireme/cli/train.h"
#include "trireme/train/checkpoint_manifest.h"

#include "tests/cli/stdout_of.h"
#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/json_lines.h"
#include "tests/support/small_files.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/words_of.h"

namespace fs = std::filesystem;

namespace trireme::trained_run_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

// Its standard output.
std::string run(int (*command)(const Words&), const Words& words) {
  return testing::stdout_of([&] { return command(words); });
}

class TrainedRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    threads_ = at::get_num_threads();
    folder_.emplace();
    make_model("model", "bfloat16", 1);
    make_model("other", "float32", 2);
    std::ofstream text(*folder_ / "text.txt"), lines(*folder_ / "lines.jsonl");
    for (int line = 0; line < 60; ++line) {
      text << "Line " << line << " of a text in which " << line * line << " is a square.\n";
      lines << R"({"text": "A line of )" << line
            << R"( squares, and then some.", "body": "Quite another text, )" << line << "\"}\n";
    }
    text.close();
    lines.close();
    words_ = testing::words_of(
        "--max_seq_length 48 --max_steps 2 --per_device_train_batch_size 3 --gradient_accumulation_steps 2 "
        "--learning_rate 3e-3 --lr_scheduler_type constant --weight_decay 0.03 --adam_beta1 0.8 "
        "--adam_beta2 0.7 --adam_epsilon 1e-3 --max_grad_norm 0.4 --seed 17 --packing concat "
        "--save_total_limit 12 --logging_steps 14 --validation_split_percentage 40 --max_eval_samples 1 "
        "--eval_steps 1 --report_to none --peak_tflops 1e-9 --threads 1 --device cpu --tile_tokens 33 "
        "--recompute full --zero 1 --optim_state_dtype bf16 --reduce_dtype bf16");
    words_.insert(words_.end(), {"--model_name_or_path", path("model"), "--train_file", path("text.txt"),
                                 "--output_dir", path("run")});
    trained_ = run(run_train, words_);
  }
  static void TearDownTestSuite() {
    folder_.reset();
    at::set_num_threads(threads_);
  }
  static void make_model(const char* name, const char* dtype, int seed) {
    run(run_init,
        {"--preset", "tiny", "--out", path(name), "--seed", std::to_string(seed), "--dtype", dtype, "--set",
         "num_hidden_layers=1", "hidden_size=32", "intermediate_size=32", "initializer_range=0.3"});
  }
  static std::string path(const char* name) { return (*folder_ / name).string(); }
  static Json metrics(int64_t step) {
    for (const Json& record : testing::json_lines(*folder_ / "run" / "metrics.jsonl"))
      if (record["step"] == step && record.contains("loss")) return record;
    return {};
  }
  static Json evaluated(const Words& more) {
    Words words{"loss", "--json", "--device", "cpu", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return Json::parse(run(run_eval, words));
  }
  // What is given wins over what is needed.
  static Json evaluated_with(const Words& flag) {
    Words words = flag;
    for (const auto& [name, value] :
         {std::pair<std::string, std::string>{"--model_name_or_path", path("model")},
          {"--eval_file", path("text.txt")},
          {"--max_seq_length", "48"}})
      if (std::find(flag.begin(), flag.end(), name) == flag.end() &&
          !(name == "--model_name_or_path" &&
            std::find(flag.begin(), flag.end(), "--checkpoint") != flag.end()))
        words.insert(words.end(), {name, value});
    return evaluated(words);
  }

  static inline std::optional<testing::TemporaryFolder> folder_;
  static inline Words words_;
  static inline std::string trained_;
  static inline int threads_ = 1;
};

TEST_F(TrainedRun, has_every_option_in_its_config_as_it_was_given) {
  Declared<TrainFlags> train("train");
  train.parser.parse(words_);
  const Json given = to_json(train.flags.resolve({})), kept = read_json(*folder_ / "run" / "config.json");
  for (const auto& [name, value] : given.items()) EXPECT_EQ(kept.at(name), value) << name;
}

TEST_F(TrainedRun, trains_as_its_options_say) {
  for (const int64_t step : {1, 2}) {
    const Json record = metrics(step);
    EXPECT_EQ(record["learning_rate"], 3e-3);
    EXPECT_EQ(record["sequence_length"], 48);
    EXPECT_EQ(record["packing"], "concat");
    EXPECT_EQ(record["tokens_seen"], step * 3 * 2 * 48);
    EXPECT_EQ(record["target_tokens"], 3 * 2 * 48);
  }
  EXPECT_TRUE(metrics(3).is_null());
  EXPECT_FALSE(fs::exists(*folder_ / "run" / "runs")) << "--report_to none";
}

// --peak_tflops is far below what any machine does.
TEST_F(TrainedRun, says_once_that_an_mfu_above_100_percent_means_a_peak_that_is_too_low) {
  const std::string warning = "MFU is above 100 %";
  const size_t first = trained_.find(warning);
  ASSERT_NE(first, std::string::npos) << trained_;
  EXPECT_EQ(trained_.find(warning, first + 1), std::string::npos);
  EXPECT_THAT(trained_, AllOf(HasSubstr("(given)"), HasSubstr("--peak_tflops")));
  EXPECT_GT(metrics(1)["mfu"], 1);
}

TEST_F(TrainedRun, on_fewer_ranks_takes_the_batch_that_its_deepspeed_file_gave_the_first) {
  std::ofstream(path("ds.json")) << R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2})";
  ::setenv("TRIREME_FIRST_RANKS", "2", 1);
  run(run_train, {"--model_name_or_path", path("model"), "--train_file", path("text.txt"), "--output_dir",
                  path("elastic"), "--max_seq_length", "48", "--max_steps", "1", "--deepspeed",
                  path("ds.json"), "--device", "cpu", "--report_to", "none"});
  ::unsetenv("TRIREME_FIRST_RANKS");
  EXPECT_EQ(read_json(path("elastic/config.json"))["gradient_accumulation_steps"], 4);
}

TEST_F(TrainedRun, and_its_evaluation_say_how_to_start_the_ranks_that_are_to_share_a_sample) {
  const auto needs_two = AllOf(HasSubstr("--sp: 2 ranks are to share a sample, and the run has 1 rank;"),
                               HasSubstr("start it with trireme launch --nproc_per_node 2 -- "));
  Words words = words_;
  words.insert(words.end(), {"--sp", "2"});
  EXPECT_THAT(testing::message_of<ConfigError>([&] { run(run_train, words); }), needs_two);
  EXPECT_THAT(testing::message_of<ConfigError>([] { evaluated_with({"--sp", "2"}); }), needs_two);
}

TEST_F(TrainedRun, is_not_evaluated_where_tmpdir_is_no_folder) {
  const std::optional<std::string> before = environment("TMPDIR");
  ::setenv("TMPDIR", path("text.txt").c_str(), 1);
  const std::string message = testing::message_of<ConfigError>([] { evaluated_with({}); });
  if (before)
    ::setenv("TMPDIR", before->c_str(), 1);
  else
    ::unsetenv("TMPDIR");
  EXPECT_THAT(message, AllOf(HasSubstr(path("text.txt")), HasSubstr("TMPDIR")));
}

TEST_F(TrainedRun, evaluates_as_the_flags_say) {
  const Json plain = evaluated_with({});
  EXPECT_EQ(plain["sequence_tokens"], 48);
  EXPECT_EQ(plain["packing"], "documents");
  EXPECT_GT(plain["samples"], 3);

  EXPECT_EQ(evaluated_with({"--max_eval_samples", "2"})["samples"], 2);
  EXPECT_EQ(evaluated_with({"--buckets", "3"})["by_position"].size(), 3U);
  EXPECT_NE(plain["by_position"].size(), 3U);
  EXPECT_EQ(evaluated_with({"--max_seq_length", "24"})["sequence_tokens"], 24);
  EXPECT_EQ(evaluated_with({"--packing", "concat"})["packing"], "concat");
  const Json bf16 = evaluated_with({"--bf16"});
  EXPECT_NE(bf16["loss"], plain["loss"]);
  EXPECT_NEAR(bf16["loss"].get<double>() / plain["loss"].get<double>(), 1, 0.02);

  const Json lines = evaluated_with({"--eval_file", path("lines.jsonl")});
  EXPECT_NE(lines["target_tokens"], plain["target_tokens"]);
  EXPECT_NE(evaluated_with({"--eval_file", path("lines.jsonl"), "--text_field", "body"})["target_tokens"],
            lines["target_tokens"]);
  EXPECT_LT(evaluated_with({"--eval_file", path("lines.jsonl"), "--no_append_eos"})["target_tokens"],
            lines["target_tokens"]);
  ::testing::internal::CaptureStderr();
  const Json half =
      evaluated_with({"--eval_file", path("lines.jsonl"), "--validation_split_percentage", "50"});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("held out: the last"));
  EXPECT_LT(half["samples"], lines["samples"]);
  // Its last half alone is another text, which a file of its own has too.
  const auto write = [](const char* name, const std::string& text) { std::ofstream(path(name)) << text; };
  std::string squares, words;
  for (int i = 0; i < 60; ++i) squares += cat(i * i, " "), words += "quite another text ";
  write("halves.jsonl", cat("{\"text\": \"", squares, "\"}\n{\"text\": \"", words, "\"}\n"));
  write("words.jsonl", cat("{\"text\": \"", words, "\"}\n"));
  const Json held_out =
                 evaluated_with({"--eval_file", path("halves.jsonl"), "--validation_split_percentage", "50"}),
             alone = evaluated_with({"--eval_file", path("words.jsonl")});
  EXPECT_EQ(held_out["target_tokens"], alone["target_tokens"]);
  EXPECT_EQ(held_out["loss"], alone["loss"]);
  EXPECT_NE(evaluated_with({"--model_name_or_path", path("other")})["loss"], plain["loss"]);
  EXPECT_NE(evaluated_with({"--checkpoint", path("run")})["loss"], plain["loss"]);
}

TEST_F(TrainedRun, is_evaluated_with_the_packing_that_it_had_unless_a_flag_says_another) {
  const Words run_flag{"--checkpoint", path("run")};
  const auto with = [&](const Words& more) {
    Words words = run_flag;
    words.insert(words.end(), more.begin(), more.end());
    return evaluated_with(words);
  };
  EXPECT_EQ(with({})["packing"], "concat");
  EXPECT_EQ(with({}), with({"--packing", "concat"}));
  EXPECT_EQ(with({"--packing", "documents"})["packing"], "documents");
  const auto told = [&](const Words& more) {
    Words words = testing::words_of("loss --max_seq_length 48 --device cpu --threads 1");
    words.insert(words.end(), {"--checkpoint", path("run"), "--eval_file", path("lines.jsonl")});
    words.insert(words.end(), more.begin(), more.end());
    return run(run_eval, words);
  };
  EXPECT_THAT(told({}), StartsWith("packing concat\n"));
  EXPECT_THAT(told({"--packing", "best_fit"}), StartsWith("packing best_fit, long_documents cut\n"));
}

TEST_F(TrainedRun, is_exported_in_the_dtype_that_the_model_had_unless_told_otherwise) {
  const auto dtype = [](const char* out) { return read_json(*folder_ / out / "config.json")["torch_dtype"]; };
  const auto bytes = [](const char* out) { return fs::file_size(*folder_ / out / "model.safetensors"); };
  const std::string said = run(run_export, {"--checkpoint", path("run"), "--out", path("as_it_was")});
  EXPECT_THAT(said, AllOf(HasSubstr("bfloat16, as the model had"), HasSubstr("KiB of weights")));
  EXPECT_EQ(dtype("as_it_was"), "bfloat16");
  run(run_export, {"--checkpoint", path("run"), "--output_dir", path("fp32"), "--dtype", "float32"});
  EXPECT_EQ(dtype("fp32"), "float32");
  EXPECT_GT(bytes("fp32"), bytes("as_it_was") * 19 / 10);
  run(run_export, {"--checkpoint", path("run"), "--out", path("fp16"), "--dtype", "float16"});
  EXPECT_EQ(dtype("fp16"), "float16");
  EXPECT_TRUE(fs::exists(*folder_ / "fp32" / "tokenizer.json"));
}

TEST_F(TrainedRun, is_exported_over_an_older_model_only_when_told_and_leaves_other_files) {
  const fs::path out = *folder_ / "exported";
  run(run_export, {"--checkpoint", path("run"), "--out", out.string() + "/", "--dtype", "float32"});
  std::ofstream(out / "notes.txt") << "mine";
  std::ofstream(out / "model-00001-of-00002.safetensors") << "of a larger model";
  const std::string before = testing::bytes_of(out / "model.safetensors");
  const Words again{"--checkpoint", path("run"), "--out", out.string()};
  EXPECT_THAT(testing::message_of<ConfigError>([&] { run(run_export, again); }),
              AllOf(HasSubstr("not empty"), HasSubstr("--overwrite")));
  EXPECT_EQ(testing::bytes_of(out / "model.safetensors"), before);
  run(run_export, {"--checkpoint", path("run"), "--out", out.string(), "--overwrite"});
  EXPECT_LT(fs::file_size(out / "model.safetensors"), before.size()) << "bfloat16 now";
  EXPECT_TRUE(fs::exists(out / "notes.txt"));
  EXPECT_FALSE(fs::exists(out / "model-00001-of-00002.safetensors"));
  for (const auto& entry : fs::directory_iterator(folder_->path()))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr(".tmp-")));
}

TEST_F(TrainedRun, leaves_nothing_of_an_export_to_a_full_disk_and_the_older_model_as_it_was) {
  const fs::path old = *folder_ / "old";
  run(run_export, {"--checkpoint", path("run"), "--out", old.string()});
  const std::string weights = testing::bytes_of(old / "model.safetensors");
  const auto entries = [] { return std::distance(fs::directory_iterator(folder_->path()), {}); };
  const auto before = entries();
  for (const rlim_t bytes : {1U, 1000U, 20000U})
    for (const char* out : {"new", "old"}) {
      const testing::SmallFiles limit(bytes);
      EXPECT_THAT(testing::message_of<DataError>([&] {
                    run(run_export, {"--checkpoint", path("run"), "--out", path(out), "--overwrite"});
                  }),
                  HasSubstr(cat(path(out), ".tmp-")));
    }
  EXPECT_EQ(entries(), before);
  EXPECT_EQ(testing::bytes_of(old / "model.safetensors"), weights);
}

TEST_F(TrainedRun, with_lora_names_an_option_of_its_checkpoint_that_is_no_text) {
  Words words = testing::words_of(
      "--max_seq_length 32 --max_steps 1 --per_device_train_batch_size 1 --lora_r 2 --report_to none "
      "--peak_tflops 1 --threads 1 --device cpu");
  words.insert(words.end(), {"--model_name_or_path", path("model"), "--train_file", path("text.txt"),
                             "--output_dir", path("lora")});
  run(run_train, words);
  const fs::path checkpoint = *folder_ / "lora" / "checkpoints" / "step-1",
                 file = checkpoint / "trainer_state.json";
  Json state = read_json(file);
  state["options"]["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  std::ofstream(file) << state;
  CheckpointManifest manifest = read_manifest(checkpoint);
  manifest.files.at("trainer_state.json") = describe_file(file);
  fs::remove(checkpoint / "manifest.json");
  write_manifest(checkpoint, manifest);
  EXPECT_THAT(
      testing::message_of<DataError>([&] {
        run(run_export, {"--checkpoint", path("lora"), "--out", path("adapter")});
      }),
      AllOf(HasSubstr("trainer_state.json: options"), HasSubstr("\"rope_scaling\""), HasSubstr("a string")));
  EXPECT_FALSE(fs::exists(*folder_ / "adapter"));
}

// Evaluation drops nothing, whatever config.json asks of training.
TEST_F(TrainedRun, of_a_model_with_dropout_is_refused_once_unless_told_to_leave_it_out) {
  const auto make = [](const char* name, const char* rate) {
    run(run_init,
        {"--preset", "bert-tiny", "--out", path(name), "--seed", "1", "--set", "num_hidden_layers=1",
         std::string("hidden_dropout_prob=") + rate, std::string("attention_probs_dropout_prob=") + rate});
  };
  make("bert", "0.1");
  make("bert_without", "0");
  const auto loss = [&](const char* name) {
    return evaluated_with({"--model_name_or_path", path(name), "--mask_token_id", "258"})["loss"];
  };
  EXPECT_EQ(loss("bert"), loss("bert_without"));

  Words train = testing::words_of(
      "--max_seq_length 32 --max_steps 1 --per_device_train_batch_size 1 --mask_token_id 258 --peak_tflops 1 "
      "--threads 1 --device cpu");
  train.insert(train.end(), {"--model_name_or_path", path("bert"), "--train_file", path("text.txt"),
                             "--output_dir", path("bert_run")});
  EXPECT_THAT(testing::message_of<ConfigError>([&] { run(run_train, train); }),
              AllOf(HasSubstr("hidden_dropout_prob 0.1"), HasSubstr("attention_probs_dropout_prob 0.1"),
                    HasSubstr("--dropout 0")));
  EXPECT_FALSE(fs::exists(*folder_ / "bert_run"));
  train.insert(train.end(), {"--dropout", "0"});
  run(run_train, train);
  EXPECT_EQ(read_json(*folder_ / "bert_run" / "config.json")["dropout"], 0);
  train.back() = "0.1";
  EXPECT_THAT(testing::message_of<ConfigError>([&] { run(run_train, train); }),
              HasSubstr("dropout is not built"));
}

}  // namespace
}  // namespace trireme::trained_run_test
