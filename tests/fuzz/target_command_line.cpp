// The first line says which parser: "launch" (all of it), "set" (init's --set), "stages", "rope",
// "kwargs" (the schedule's), else the parser of every other command, with a flag of each kind. Nothing is
// run.
#include <filesystem>
#include <iostream>
#include <sstream>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/cli/launch_arguments.h"
#include "trireme/cli/model_presets.h"
#include "trireme/cli/option_parser.h"
#include "trireme/model/rope_override.h"
#include "trireme/train/context_stages.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {
namespace {

void parse_each_kind(const std::vector<std::string>& words) {
  std::string text, choice = "a";
  std::filesystem::path path;
  std::vector<std::filesystem::path> paths;
  int64_t count = 0, integer = 0;
  double real = 0;
  bool flag = false;
  OptionParser parser("train", "Fuzzed.");
  parser.text("text_field", text, "text");
  parser.path("output_dir", path, "path").required();
  parser.paths("input", paths, "paths");
  parser.count("max_seq_length", count, at_least(0), "count");
  parser.count("seed", integer, from_to(-10, 1e18), "integer");
  parser.real("learning_rate", real, above(0), "real");
  parser.flag("bf16", flag, "flag");
  parser.choice("packing", choice, {"a", "b"}, "choice");
  parser.parse(words);
  is_switched_on("json", words);
}

// Help is printed there.
class Silence {
 public:
  Silence() : before_(std::cout.rdbuf(nowhere_.rdbuf())) {}
  ~Silence() { std::cout.rdbuf(before_); }
  Silence& operator=(Silence&&) = delete;

 private:
  std::ostringstream nowhere_;
  std::streambuf* before_;
};

}  // namespace

void command_line(Bytes input) {
  std::istringstream lines(text_of(input));
  std::string which;
  std::getline(lines, which);
  std::vector<std::string> words;
  for (std::string word; std::getline(lines, word);) words.push_back(word);
  const std::string first = words.empty() ? "" : words.front();
  const Silence silence;
  taken_or_refused("", [&] {
    if (which == "launch") {
      parse_launch_arguments(words);
    } else if (which == "set") {
      Json config = {{"num_hidden_layers", 2}, {"rope_scaling", {{"factor", 2}}}};
      for (const std::string& word : words) apply_config_override(config, word);
      if (config.dump().empty()) std::abort();
    } else if (which == "stages") {
      for (const ContextStage& stage : parse_context_stages(first, {}))
        if (stage.sequence_tokens < 1 || stage.steps < 1 || stage.first_step < 0) std::abort();
    } else if (which == "rope") {
      const ModelConfig model = parse_model_config({{"model_type", "llama"}}, "fuzzed");
      if (with_rope(model, {.scaling = first, .theta = {}}).max_position_embeddings < 1) std::abort();
    } else if (which == "kwargs") {
      parse_schedule_kwargs(first);
    } else {
      parse_each_kind(words);
    }
  });
}

}  // namespace trireme::fuzz
