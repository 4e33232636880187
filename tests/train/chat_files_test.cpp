// A model that was trained on chats stops where their answers end, and is asked by their template: its checkpoints
// say so, and the folder that training began with stays as it was.
#include "trireme/train/chat_files.h"

#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/continued_run.h"

#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/tiny_run.h"

namespace fs = std::filesystem;

namespace trireme::chat_files_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using ::testing::Not;
using testing::TinyOutcome;
using testing::TinyRun;
using testing::train_on_ranks;

const ChatFormat kChats{.end_tokens = {{"<|im_end|>", 7}}};

class ChatFilesOfModel : public ::testing::Test {
 protected:
  // Of a model whose folder has these texts; empty ones are not there.
  ChatFiles of(const std::string& generation, const std::string& config = "{}", const fs::path& adapter = {},
               const ChatFormat& chats = kChats) const {
    fs::remove_all(folder_ / "model");
    folder_.write("model/config.json", config);
    if (!generation.empty()) folder_.write("model/generation_config.json", generation);
    return chat_files(chats, folder_ / "model", adapter);
  }
  static Json generation_of(const ChatFiles& files) {
    return parse_json(files.texts.at("generation_config.json"), "it");
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ChatFilesOfModel, add_the_ends_of_answers_to_where_it_stops) {
  const ChatFiles one = of(R"({"eos_token_id": 3, "top_p": 0.5})");
  EXPECT_EQ(generation_of(one), (Json{{"eos_token_id", {3, 7}}, {"top_p", 0.5}}));
  EXPECT_THAT(one.notes,
              ElementsAre("generation_config.json: eos_token_id is now [3, 7], as answers of the chats "
                          "end in \"<|im_end|>\" (7)"));
  EXPECT_EQ(generation_of(of(R"({"eos_token_id": [4, 3]})")), (Json{{"eos_token_id", {4, 3, 7}}}));
  EXPECT_EQ(generation_of(of("{}", R"({"eos_token_id": 3})")), (Json{{"eos_token_id", Json::array({7})}}));
}

// Without the file transformers takes the ids of config.json, and with it none.
TEST_F(ChatFilesOfModel, keep_what_config_json_says_where_no_file_does) {
  const char* const ids = R"({"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": null, "hidden_size": 8})";
  const Json expected = {{"bos_token_id", 1}, {"eos_token_id", {3, 7}}};
  EXPECT_EQ(generation_of(of("", ids)), expected);
  EXPECT_EQ(generation_of(of("", cat(R"({"text_config": )", ids, "}"))), expected);
}

TEST_F(ChatFilesOfModel, are_none_where_it_stops_there_already_or_no_set_says_an_end) {
  for (const char* generation : {R"({"eos_token_id": 7})", R"({"eos_token_id": [3, 7]})"})
    EXPECT_THAT(of(generation).texts, IsEmpty());
  EXPECT_THAT(of("", R"({"eos_token_id": 7})").texts, IsEmpty());
  const ChatFiles of_text = of(R"({"eos_token_id": "no number"})", "{}", {}, {});
  EXPECT_THAT(of_text.texts, IsEmpty());
  EXPECT_THAT(of_text.notes, IsEmpty());
}

TEST_F(ChatFilesOfModel, have_what_an_adapter_says_beside_it) {
  const fs::path adapter =
      folder_.write("adapter/generation_config.json", R"({"eos_token_id": [3, 9]})").parent_path();
  const ChatFiles files = of(R"({"eos_token_id": 3})", "{}", adapter);
  EXPECT_EQ(generation_of(files)["eos_token_id"], Json({3, 7, 9}));
  EXPECT_THAT(files.notes, ElementsAre(HasSubstr("adapter/generation_config.json has 9")));
}

TEST_F(ChatFilesOfModel, name_the_file_that_is_damaged) {
  EXPECT_THAT(message_of<DataError>([&] { of(R"({"eos_token_id": "<|im_end|>"})"); }),
              AllOf(HasSubstr("model/generation_config.json"), HasSubstr("eos_token_id")));
}

// Of a model's folder with these files beside config.json, for chats that template "new" wrote.
class TemplateOfModel : public ::testing::Test {
 protected:
  ChatFiles of(const std::map<std::string, std::string>& files, const fs::path& adapter = {},
               const ChatFormat& chats = {.chat_template = "new"}) const {
    fs::remove_all(folder_ / "model");
    fs::create_directories(folder_ / "model");
    for (const auto& [name, text] : files) folder_.write("model/" + name, text);
    return chat_files(chats, folder_ / "model", adapter);
  }
  testing::TemporaryFolder folder_;
};

TEST_F(TemplateOfModel, is_that_of_the_chats_where_the_models_is_another_or_none) {
  const ChatFiles none = of({}), other = of({{"chat_template.jinja", "old"}});
  for (const ChatFiles& files : {none, other}) {
    EXPECT_EQ(files.texts.at("chat_template.jinja"), "new");
    EXPECT_EQ(files.texts.size(), 1U);
  }
  EXPECT_THAT(none.notes,
              ElementsAre("chat_template.jinja: the chat template by which the chats were written"));
  EXPECT_THAT(other.notes,
              ElementsAre(AllOf(HasSubstr("chats were written"), HasSubstr("in place of the model's"))));
  for (const char* settings :
       {R"({"chat_template": "old"})", R"({"chat_template": [{"name": "tools", "template": "new"}]})"})
    EXPECT_EQ(of({{"tokenizer_config.json", settings}}).texts.at("chat_template.jinja"), "new") << settings;
}

TEST_F(TemplateOfModel, is_the_models_where_it_is_the_same_wherever_it_stands) {
  const char* const listed =
      R"({"chat_template": [{"name": "tools", "template": "a"}, {"name": "default", "template": "new"}]})";
  for (const std::map<std::string, std::string>& files :
       {std::map<std::string, std::string>{{"chat_template.jinja", "new"},
                                           {"tokenizer_config.json", R"({"chat_template": "old"})"}},
        {{"tokenizer_config.json", R"({"chat_template": "new"})"}},
        {{"tokenizer_config.json", listed}},
        {{"chat_template.json", R"({"chat_template": "new"})"}, {"tokenizer_config.json", "{}"}}}) {
    const ChatFiles same = of(files);
    EXPECT_THAT(same.texts, IsEmpty()) << files.begin()->first;
    EXPECT_THAT(same.notes, IsEmpty());
  }
  EXPECT_THAT(of({{"chat_template.jinja", "old"}}, {}, {}).texts, IsEmpty());
}

// Processors of transformers read chat_template.json before chat_template.jinja.
TEST_F(TemplateOfModel, also_takes_the_place_of_the_older_file) {
  const ChatFiles files = of({{"chat_template.json", R"({"chat_template": "old"})"}});
  EXPECT_EQ(files.texts.at("chat_template.jinja"), "new");
  EXPECT_EQ(parse_json(files.texts.at("chat_template.json"), "it"), (Json{{"chat_template", "new"}}));
}

TEST_F(TemplateOfModel, is_the_adapters_where_no_set_has_one) {
  const fs::path adapter = folder_.write("adapter/chat_template.jinja", "of the adapter").parent_path();
  EXPECT_EQ(of({{"chat_template.jinja", "old"}}, adapter, {}).texts.at("chat_template.jinja"),
            "of the adapter");
  EXPECT_EQ(of({{"chat_template.jinja", "old"}}, adapter).texts.at("chat_template.jinja"), "new");
  EXPECT_THAT(of({{"chat_template.jinja", "of the adapter"}}, adapter, {}).texts, IsEmpty());
}

// A run on a set whose PREFIX.set.json says where answers end.
class RunOnChats : public ::testing::Test {
 protected:
  RunOnChats() {
    std::ofstream(run_.model() / "generation_config.json") << R"({"eos_token_id": 3})";
    say_end("</s>", 7);
  }
  void say_end(const char* token, int id) const {
    std::ofstream(run_.tokens().string() + ".set.json")
        << Json{{"format", 1}, {"answer_end_tokens", {{token, id}}}};
  }
  static Json stops(const fs::path& folder) {
    return read_json(folder / "generation_config.json")["eos_token_id"];
  }
  TrainOptions options(const char* name) const {
    TrainOptions options = run_.options(name);
    options.context_stages = "16:4";
    return options;
  }
  // The second is of another set, with this PREFIX.set.json.
  TrainOptions two_stages(const char* set_json) const {
    const std::string other = run_.folder() / "other";
    for (const char* end : {".idx", ".bin"}) fs::copy_file(run_.tokens().string() + end, other + end);
    std::ofstream(other + ".set.json") << set_json;
    TrainOptions options = run_.options("run");
    options.context_stages =
        cat(R"([{"max_seq_length": 16, "steps": 2}, {"max_seq_length": 32, "steps": 2, "train_file": ")",
            other, "\"}]");
    return options;
  }
  TinyRun run_;
};

TEST_F(RunOnChats, has_their_ends_in_its_checkpoints_and_leaves_the_model_as_it_was) {
  for (const bool in_background : {false, true}) {
    TrainOptions options = this->options(in_background ? "background" : "run");
    options.save_steps = 2;
    options.engine.save_in_background = in_background;
    const TinyOutcome trained = train_on_ranks(2, options);
    for (const char* step : {"step-2", "step-4"}) {
      const fs::path checkpoint = options.output_dir / "checkpoints" / step;
      EXPECT_EQ(stops(checkpoint), Json({3, 7}));
      EXPECT_NO_THROW(verify_checkpoint(checkpoint));
    }
    EXPECT_THAT(trained.output, HasSubstr("checkpoints: generation_config.json: eos_token_id is now [3, 7]"));
  }
  EXPECT_EQ(stops(run_.model()), 3);
}

TEST_F(RunOnChats, that_goes_on_with_other_data_keeps_the_ends_of_the_data_before) {
  TrainOptions options = this->options("run");
  train_on_ranks(1, options, 2);
  say_end("<call>", 9);
  options.resume_from_checkpoint = "true";
  EXPECT_EQ(stops(train_on_ranks(1, options).outcome.checkpoint), Json({3, 7, 9}));
}

TEST_F(RunOnChats, is_continued_with_its_ends) {
  const TrainOptions finished = options("finished");
  train_on_ranks(1, finished);
  say_end("<call>", 9);
  TrainOptions next = options("next");
  next.continue_run = finished.output_dir;
  next.model_dir = continued_checkpoint(finished.output_dir);
  EXPECT_EQ(stops(train_on_ranks(1, next).outcome.checkpoint), Json({3, 7, 9}));
}

TEST_F(RunOnChats, that_goes_on_with_chats_of_another_template_has_theirs_and_says_so) {
  const auto say_template = [&](const char* text) {
    std::ofstream(run_.tokens().string() + ".set.json") << Json{{"format", 1}, {"chat_template", text}};
  };
  TrainOptions options = this->options("run");
  say_template("before");
  EXPECT_THAT(train_on_ranks(1, options, 2).output, Not(HasSubstr("another chat template")));
  say_template("now");
  options.resume_from_checkpoint = "true";
  const TinyOutcome trained = train_on_ranks(1, options);
  EXPECT_EQ(testing::bytes_of(trained.outcome.checkpoint / "chat_template.jinja"), "now");
  EXPECT_THAT(trained.output, HasSubstr("are written by another chat template than those before"));
}

TEST_F(RunOnChats, of_lora_hands_the_ends_to_one_that_begins_with_its_adapter) {
  TrainOptions first = options("first");
  first.engine.lora.rank = 4;
  const fs::path adapter = train_on_ranks(1, first).outcome.checkpoint;
  EXPECT_EQ(stops(adapter), Json({3, 7}));
  fs::remove(run_.tokens().string() + ".set.json");
  TrainOptions next = options("next");
  next.engine.lora.adapter = adapter;
  EXPECT_EQ(stops(train_on_ranks(1, next, 2).outcome.checkpoint), Json({3, 7}));
  fs::remove_all(adapter);
  next.resume_from_checkpoint = "true";
  EXPECT_EQ(stops(train_on_ranks(1, next).outcome.checkpoint), Json({3, 7}));
}

TEST_F(RunOnChats, of_several_sets_has_the_ends_of_all) {
  const TrainOptions options = two_stages(R"({"format": 1, "answer_end_tokens": {"<call>": 9}})");
  EXPECT_EQ(stops(train_on_ranks(1, options).outcome.checkpoint), Json({3, 7, 9}));
}

TEST_F(RunOnChats, of_several_templates_is_left_with_that_of_the_last_stage) {
  const TrainOptions options = two_stages(R"({"format": 1, "chat_template": "of the last"})");
  std::ofstream(run_.tokens().string() + ".set.json") << R"({"format": 1, "chat_template": "of the first"})";
  std::ofstream(run_.model() / "chat_template.jinja") << "of the model";
  const TinyOutcome trained = train_on_ranks(1, options);
  EXPECT_EQ(testing::bytes_of(trained.outcome.checkpoint / "chat_template.jinja"), "of the last");
  EXPECT_THAT(trained.output,
              AllOf(HasSubstr("other.set.json and "), HasSubstr("that of the former is taken"),
                    HasSubstr("checkpoints: chat_template.jinja: the chat template by which")));
  EXPECT_EQ(testing::bytes_of(run_.model() / "chat_template.jinja"), "of the model");
  EXPECT_NO_THROW(verify_checkpoint(trained.outcome.checkpoint));
}

TEST_F(RunOnChats, without_a_word_of_them_has_the_models_files_as_they_are) {
  fs::remove(run_.tokens().string() + ".set.json");
  const TinyOutcome trained = train_on_ranks(1, options("run"));
  EXPECT_EQ(stops(trained.outcome.checkpoint), 3);
  EXPECT_THAT(trained.output, Not(HasSubstr("generation_config")));
  EXPECT_FALSE(read_json(trained.outcome.checkpoint / "trainer_state.json").contains("chats"));
}

}  // namespace
}  // namespace trireme::chat_files_test
