// What a Trainer's script is told to change, and what it says to the planner.
#include "trireme/plan/script_changes.h"

#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/plan/small_request.h"
#include "tests/support/error_message.h"

namespace trireme::script_changes_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_request;
using ::testing::StartsWith;

const char* const kSft =
    "import torch\n"
    "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
    "from trl import SFTConfig, SFTTrainer\n"
    "\n"
    "NAME = \"org/model\"\n"
    "tokenizer = AutoTokenizer.from_pretrained(\"org/other\")\n"
    "model = AutoModelForCausalLM.from_pretrained(NAME)\n"
    "arguments = SFTConfig(\n"
    "    output_dir=\"out\",\n"
    "    per_device_train_batch_size=4,\n"
    "    max_length=1024,\n"
    "    learning_rate=1e-5,\n"
    "    seed=args.seed,\n"
    ")\n"
    "trainer = SFTTrainer(model=model, args=arguments, train_dataset=data)\n"
    "trainer.train()\n";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

Planned planned(const PlanRequest& request, int data_parallel, int ulysses, int ring = 1) {
  Configuration configuration;
  configuration.data_parallel = data_parallel;
  configuration.ulysses = ulysses;
  configuration.ring = ring;
  configuration.tile_tokens = 256;
  configuration.logits_tile_tokens = 64;
  return make_planned(request, configuration, request.tokens);
}

ScriptChanges changes_of(const std::string& text, int data_parallel = 2, int ulysses = 4, int ring = 1,
                         int zero = 0, const std::string& file = "train.py") {
  const PlanRequest request = small_request(data_parallel * ulysses * ring, 65536, int64_t{1} << 34);
  Planned plan = planned(request, data_parallel, ulysses, ring);
  plan.configuration.zero = zero;
  return script_changes(read_trainer_script(text, file), request, plan);
}

std::map<std::string, Json> values_of(const std::string& text) {
  std::map<std::string, Json> values;
  for (const ScriptValue& value : script_values(read_trainer_script(text, "train.py")))
    values[value.option] = value.value;
  return values;
}

std::string refusal(const std::string& text) {
  return testing::message_of<ConfigError>([&] { read_trainer_script(text, "train.py"); });
}

TEST(ScriptChanges, wrap_the_trainer_and_set_length_and_batch) {
  const ScriptChanges changes = changes_of(kSft);
  EXPECT_EQ(changes.diff,
            "--- a/train.py\n+++ b/train.py\n@@ -1,16 +1,17 @@\n import torch\n from transformers import "
            "AutoModelForCausalLM, AutoTokenizer\n"
            " from trl import SFTConfig, SFTTrainer\n+from trireme.hf import with_sequence_parallel\n \n "
            "NAME = \"org/model\"\n"
            " tokenizer = AutoTokenizer.from_pretrained(\"org/other\")\n"
            " model = AutoModelForCausalLM.from_pretrained(NAME)\n arguments = SFTConfig(\n     "
            "output_dir=\"out\",\n"
            "-    per_device_train_batch_size=4,\n-    max_length=1024,\n+    "
            "per_device_train_batch_size=1,\n+    max_length=65536,\n"
            "     learning_rate=1e-5,\n     seed=args.seed,\n )\n"
            "-trainer = SFTTrainer(model=model, args=arguments, train_dataset=data)\n"
            "+trainer = with_sequence_parallel(SFTTrainer, sp_size=4)(model=model, args=arguments, "
            "train_dataset=data)\n trainer.train()\n");
  EXPECT_EQ(changes.launch.rfind("torchrun --nnodes 2 --nproc_per_node 4 ", 0), 0) << changes.launch;
  EXPECT_EQ(changes_of(kSft, 1, 4).launch, "torchrun --nproc_per_node 4 train.py");
}

// `git apply` refuses absolute paths, and those that leave its folder.
TEST(ScriptChanges, name_the_script_below_the_folder_where_the_diff_applies) {
  const std::filesystem::path here = std::filesystem::current_path();
  const auto of_file = [](const std::filesystem::path& file) {
    return changes_of(kSft, 1, 4, 1, 0, file.string());
  };
  for (const auto& file : {here / "sub/train.py", std::filesystem::path("./other/../sub/train.py")}) {
    const ScriptChanges changes = of_file(file);
    EXPECT_THAT(changes.diff, StartsWith("--- a/sub/train.py\n+++ b/sub/train.py\n"));
    EXPECT_THAT(changes.notes, Not(Contains(HasSubstr("Apply the diff"))));
    EXPECT_THAT(changes.launch, HasSubstr(file.string()));
  }
  const std::string elsewhere = (here.parent_path() / "elsewhere").string();
  for (const char* file : {"../elsewhere/train.py", "sub/../../elsewhere/train.py"}) {
    EXPECT_THAT(of_file(file).diff, StartsWith("--- a/train.py\n+++ b/train.py\n"));
    EXPECT_THAT(of_file(file).notes, Contains(cat("Apply the diff in ", elsewhere, ".")));
  }
}

TEST(ScriptChanges, name_no_sizes_where_all_ranks_share_and_the_ring_where_there_is_one) {
  EXPECT_THAT(changes_of(kSft, 1, 4).diff, HasSubstr("with_sequence_parallel(SFTTrainer)(model"));
  EXPECT_THAT(changes_of(kSft, 1, 4, 2).diff,
              HasSubstr("with_sequence_parallel(SFTTrainer, sp_ring=2)(model"));
  EXPECT_THAT(changes_of(kSft, 2, 4, 2).diff,
              HasSubstr("with_sequence_parallel(SFTTrainer, sp_size=8, sp_ring=2)(model"));
  const ScriptChanges alone = changes_of(kSft, 2, 1);
  EXPECT_THAT(alone.diff, Not(HasSubstr("with_sequence_parallel")));
  EXPECT_THAT(alone.notes, Contains(HasSubstr("shares no sample")));
}

TEST(ScriptChanges, find_the_trainer_by_any_of_its_names) {
  const std::string other = replaced(kSft, "from trl import SFTConfig, SFTTrainer", "import trl as t");
  EXPECT_THAT(
      changes_of(replaced(replaced(other, "= SFTTrainer", "= t.SFTTrainer"), "SFTConfig", "t.SFTConfig"))
          .diff,
      AllOf(HasSubstr(" import trl as t\n+from trireme.hf import with_sequence_parallel\n"),
            HasSubstr("with_sequence_parallel(t.SFTTrainer, sp_size=4)(model"),
            HasSubstr("+    max_length=65536")));
  const std::string own =
      replaced(replaced(kSft, "\nNAME", "class Mine(SFTTrainer):\n    pass\nNAME"), "= SFTTrainer", "= Mine");
  EXPECT_THAT(changes_of(own).diff, HasSubstr("with_sequence_parallel(Mine, sp_size=4)(model"));
}

TEST(ScriptChanges, add_what_is_missing_behind_the_last_argument) {
  EXPECT_THAT(changes_of(replaced(kSft, "    max_length=1024,\n", "")).diff,
              HasSubstr("     seed=args.seed,\n+    max_length=65536,\n )\n"));
  const std::string line =
      "from transformers import Trainer, TrainingArguments\nt = Trainer(\"org/model\", "
      "TrainingArguments(\"out\"))\n";
  EXPECT_THAT(
      changes_of(line).diff,
      HasSubstr("TrainingArguments(\"out\", per_device_train_batch_size=1, gradient_checkpointing=True))"));
  EXPECT_THAT(changes_of(line).notes, Contains(HasSubstr("at most 65536 tokens")));
}

TEST(ScriptChanges, part_the_arguments_of_a_call_that_had_none) {
  const std::string text =
      "from trl import SFTConfig, SFTTrainer\nt = SFTTrainer(\"org/model\", args=SFTConfig())\n";
  EXPECT_THAT(changes_of(text).diff, HasSubstr("SFTConfig(max_length=65536, per_device_train_batch_size=1)"));
}

TEST(ScriptChanges, add_nothing_that_an_unpacked_dictionary_may_hold) {
  const ScriptChanges changes = changes_of(replaced(kSft, "    max_length=1024,\n", "    **given,\n"));
  EXPECT_THAT(changes.diff, Not(HasSubstr("max_length")));
  EXPECT_THAT(changes.notes,
              Contains("not found: max_length, which line 11 may give by **given. Let it be 65536."));
}

TEST(ScriptChanges, import_before_a_trainer_in_the_next_line_or_in_the_same) {
  EXPECT_THAT(changes_of("from trl import SFTTrainer\nSFTTrainer(\"org/model\").train()\n").diff,
              HasSubstr("+from trireme.hf import with_sequence_parallel\n"
                        "+with_sequence_parallel(SFTTrainer, sp_size=4)(\"org/model\").train()\n"));
  EXPECT_THAT(
      changes_of("from trl import SFTTrainer; SFTTrainer(\"org/model\")\n").diff,
      HasSubstr("+from trireme.hf import with_sequence_parallel\n+from trl import SFTTrainer; with_"));
}

TEST(ScriptChanges, shard_parameters_as_the_plan_does_unless_the_script_does_it) {
  EXPECT_THAT(changes_of(kSft, 2, 4, 1, 3).diff,
              AllOf(HasSubstr("+    deepspeed={"), HasSubstr("\"stage\":3"),
                    HasSubstr("\"train_batch_size\":\"auto\"")));
  EXPECT_THAT(changes_of(kSft).diff, Not(HasSubstr("deepspeed")));
  const ScriptChanges by_file =
      changes_of(replaced(kSft, "seed=args.seed", "deepspeed=\"ds.json\""), 2, 4, 1, 3);
  EXPECT_THAT(by_file.diff, Not(HasSubstr("+    deepspeed")));
  EXPECT_THAT(by_file.notes, Contains(AllOf(HasSubstr("ds.json"), HasSubstr("ZeRO stage 3"),
                                            HasSubstr("no sequence_parallel_size"))));
}

TEST(ScriptChanges, name_what_they_cannot_find) {
  const auto notes = changes_of(replaced(replaced(kSft, "max_length=1024", "max_length=args.length"),
                                         "NAME = \"org/model\"", "NAME = sys.argv[1]"))
                         .notes;
  EXPECT_THAT(notes, Contains("not found: max_length, which line 11 gives as args.length. Let it be 65536."));
  EXPECT_THAT(notes, Contains("not found: the model: line 7 names it by NAME."));
  const std::string parsed =
      "from transformers import HfArgumentParser, TrainingArguments, Trainer\n(args,) = "
      "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
      "t = Trainer(\"org/model\", args)\n";
  EXPECT_THAT(
      changes_of(parsed).notes,
      Contains(AllOf(HasSubstr("not found: the trainer's arguments: line 2"), HasSubstr("command line"))));
  EXPECT_THAT(changes_of(parsed).notes, Contains(HasSubstr("--per_device_train_batch_size 1")));
}

TEST(ScriptChanges, keep_the_plan_s_global_batch) {
  const PlanRequest request = small_request(8, 65536, int64_t{1} << 34);
  Planned plan = planned(request, 2, 4);
  plan.configuration.accumulation = 4;
  EXPECT_THAT(script_changes(read_trainer_script(kSft, "train.py"), request, plan).diff,
              HasSubstr("+    gradient_accumulation_steps=4,"));
}

TEST(ScriptChanges, give_a_wrapped_trainer_the_plan_s_ring) {
  const auto wrapped = [](const std::string& sizes) {
    return replaced(replaced(kSft, "import torch\n", "from trireme.hf import with_sequence_parallel\n"),
                    "SFTTrainer(model",
                    cat("with_sequence_parallel(SFTTrainer, sp_size=8", sizes, ")(model"));
  };
  EXPECT_THAT(changes_of(wrapped(""), 1, 4, 2).diff, HasSubstr("sp_size=8, sp_ring=2)(model"));
  EXPECT_THAT(changes_of(wrapped(", sp_ring=2"), 1, 8, 1).diff, HasSubstr("sp_size=8, sp_ring=1)(model"));
}

TEST(ScriptChanges, tell_of_another_precision_and_of_shards_over_all_ranks) {
  const auto notes_with = [](const std::string& argument) {
    return changes_of(replaced(kSft, "    seed=", cat("    ", argument, ",\n    seed="))).notes;
  };
  EXPECT_THAT(notes_with("bf16=False"),
              Contains(HasSubstr("The plan is for bf16, the script says bf16=False")));
  EXPECT_THAT(notes_with("fsdp=\"full_shard\""),
              Contains(AllOf(HasSubstr("FSDP (line 13)"), HasSubstr("over all ranks"))));
}

TEST(ScriptChanges, name_the_native_flags_of_a_packing) {
  const auto notes_with = [](const std::string& arguments) {
    return changes_of(replaced(kSft, "    seed=", cat("    ", arguments, ",\n    seed="))).notes;
  };
  EXPECT_THAT(notes_with("packing=True"),
              Contains(HasSubstr("natively --packing best_fit --long_documents truncate, ")));
  EXPECT_THAT(
      notes_with("packing=True, packing_strategy=\"wrapped\""),
      Contains(HasSubstr("line 13: packing=True, by the strategy wrapped, is natively --packing concat.")));
  EXPECT_THAT(notes_with("packing=True, packing_strategy=\"bfd_split\""),
              Contains(HasSubstr("natively --packing best_fit, ")));
  for (const char* unknown : {"packing=False", "packing=packs", "packing=True, packing_strategy=name"})
    EXPECT_THAT(notes_with(unknown), Not(Contains(HasSubstr("natively")))) << unknown;
}

TEST(ScriptChanges, are_made_where_the_script_sets_a_value_last) {
  const std::string again = replaced(kSft, ")\ntrainer = ", ")\narguments.max_length = 2 * 256\ntrainer = ");
  const ScriptChanges changes = changes_of(again);
  EXPECT_THAT(changes.diff, AllOf(HasSubstr("-arguments.max_length = 2 * 256\n"),
                                  HasSubstr("+arguments.max_length = 65536\n")));
  EXPECT_THAT(changes.diff, Not(HasSubstr("-    max_length=1024")));
  EXPECT_EQ(values_of(again).at("max_seq_length"), 512);
  for (const char* statement : {"if debug:\n    arguments.max_length = 512", "arguments.max_length //= 512",
                                "arguments.max_length += 512"}) {
    const std::string unknown = replaced(kSft, ")\ntrainer = ", cat(")\n", statement, "\ntrainer = "));
    EXPECT_THAT(changes_of(unknown).notes, Contains(HasSubstr("which line 1"))) << statement;
    EXPECT_FALSE(values_of(unknown).contains("max_seq_length")) << statement;
  }
}

TEST(ScriptChanges, change_nothing_twice) {
  const std::string text =
      "from trireme.hf import with_sequence_parallel\n" +
      replaced(replaced(replaced(kSft, "= SFTTrainer(", "= with_sequence_parallel(SFTTrainer, sp_size=4)("),
                        "=1024", "=65536"),
               "size=4,\n", "size=1,\n");
  EXPECT_EQ(changes_of(text).diff, "");
  EXPECT_THAT(changes_of(replaced(text, "sp_size=4", "sp_size=8")).diff,
              HasSubstr("+trainer = with_sequence_parallel(SFTTrainer, sp_size=4)("));
}

TEST(ScriptChanges, replace_another_parallelism_and_a_fused_loss_that_is_refused) {
  const std::string text =
      replaced(kSft, "seed=args.seed", "use_liger_kernel=True,\n    parallelism_config=pc");
  EXPECT_THAT(changes_of(text).diff, AllOf(HasSubstr("+    use_liger_kernel=False"),
                                           HasSubstr("+    parallelism_config=ParallelismConfig(sp_size=4)"),
                                           HasSubstr("+from trireme.hf import ParallelismConfig\n")));
}

// Accelerate's class of that name knows no sp_ring.
TEST(ScriptChanges, name_their_own_class_after_another_one_of_its_name) {
  const std::string text =
      replaced(replaced(kSft, "seed=args.seed", "parallelism_config=ParallelismConfig(sp_size=2)"),
               "from trl import SFTConfig, SFTTrainer\n",
               "from trl import SFTConfig, SFTTrainer\nfrom accelerate import ParallelismConfig\n");
  EXPECT_THAT(
      changes_of(text, 2, 2, 2).diff,
      HasSubstr(" from accelerate import ParallelismConfig\n+from trireme.hf import ParallelismConfig\n"));
}

TEST(ScriptValues, are_what_the_script_says_and_trl_s_other_default) {
  const auto values = values_of(kSft);
  EXPECT_EQ(values.at("model"), "org/model");
  EXPECT_EQ(values.at("max_seq_length"), 1024);
  EXPECT_EQ(values.at("per_device_train_batch_size"), 4);
  EXPECT_EQ(values.at("learning_rate"), 1e-5);
  EXPECT_FALSE(values.contains("seed"));
  EXPECT_EQ(values_of(replaced(kSft, "    learning_rate=1e-5,\n", "")).at("learning_rate"), 2e-5);
}

TEST(TrainerScript, has_the_arguments_that_its_trainer_is_given) {
  const std::string two = replaced(kSft, "arguments = SFTConfig(",
                                   "other: SFTConfig = SFTConfig(learning_rate=1)\narguments = SFTConfig(");
  EXPECT_EQ(values_of(two).at("learning_rate"), 1e-5);
  EXPECT_EQ(values_of(replaced(two, "args=arguments", "args=other")).at("learning_rate"), 1);
  EXPECT_EQ(values_of(replaced(two, "model=model, args=arguments", "model, arguments")).at("learning_rate"),
            1e-5);
  EXPECT_EQ(values_of(replaced(two, "args=arguments", "args=SFTConfig(learning_rate=2)")).at("learning_rate"),
            2);
  EXPECT_THAT(refusal(replaced(two, "args=arguments", "args=made()")), HasSubstr("lines 8 and 9"));
  const std::string of_self = replaced(two, "\narguments = SFTConfig(", "\nself.arguments = SFTConfig(");
  EXPECT_EQ(values_of(replaced(of_self, "args=arguments", "args=self.arguments")).at("learning_rate"), 1e-5);
}

TEST(TrainerScript, is_refused_by_name) {
  EXPECT_THAT(refusal("print(1)\n"), HasSubstr("makes no Trainer"));
  EXPECT_THAT(refusal("t = SFTTrainer(model)\n"), HasSubstr("by a name that it imports"));
  EXPECT_THAT(refusal("from trl import GRPOTrainer\nGRPOTrainer(\"m\")\n"), HasSubstr("trl.GRPOTrainer"));
  EXPECT_THAT(refusal("from trl import SFTTrainer\nSFTTrainer(\"m\")\nSFTTrainer(\"m\")\n"),
              HasSubstr("line 2 and in line 3"));
}

}  // namespace
}  // namespace trireme::script_changes_test
