#include "trireme/cli/commands.h"

#include <iostream>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"
#include "trireme/base/nearest_name.h"
#include "trireme/cli/bench.h"
#include "trireme/cli/config.h"
#include "trireme/cli/eval.h"
#include "trireme/cli/export.h"
#include "trireme/cli/info.h"
#include "trireme/cli/init.h"
#include "trireme/cli/launch.h"
#include "trireme/cli/mix.h"
#include "trireme/cli/new_project.h"
#include "trireme/cli/option_parser.h"
#include "trireme/cli/plan.h"
#include "trireme/cli/tokenize.h"
#include "trireme/cli/train.h"
#include "trireme/cli/validate.h"
#include "trireme/cli/verify.h"
#include "trireme/launch/restart_rule.h"

namespace trireme {
namespace {

std::string summaries(const std::vector<Command>& commands) {
  std::string text;
  for (const Command& command : commands)
    text += cat("  ", command.name, std::string(10 - command.name.size(), ' '), command.summary, "\n");
  return text;
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"new", "make a folder for a run: files to edit, which train as they are", run_new},
      {"init", "make a model from a preset: config.json, fresh weights, tokenizer", run_init},
      {"plan", "the best configuration for a model, a length and GPUs: memory, speed, cost", run_plan},
      {"tokenize", "turn text into a tokenized set (PREFIX.bin and PREFIX.idx)", run_tokenize},
      {"mix", "several tokenized sets as one, each with a share of the tokens", run_mix},
      {"validate", "check a run before it begins: memory, loss, speed, ranks against one", run_validate},
      {"train", "train a model on long sequences, split over ranks", run_train},
      {"eval", "held-out loss by position, answers, needles in haystacks", run_eval},
      {"export", "turn a checkpoint into a Hugging Face model", run_export},
      {"verify", "compare loss, logits and every gradient with a reference file", run_verify},
      {"launch", "start ranks: trireme launch --nproc_per_node 2 -- train ...", run_launch},
      {"config", "what a configuration file says, and a DeepSpeed one that contradicts itself mended",
       run_config},
      {"bench", "time optimizer steps, matrix products and exchanges", run_bench},
      {"info", "devices, kernels and transports in use, versions", run_info},
  };
  return all;
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  const std::string meant = did_you_mean(name, names);
  throw ConfigError(cat("there is no command '", name, "'", meant.empty() ? ". See trireme --help" : meant));
}

std::string commands_help() {
  std::string text =
      "Trireme trains transformer language models on long sequences, split over ranks.\n\n"
      "usage: trireme COMMAND [--flag value ...]\n\n";
  text += summaries(commands());
  text +=
      "\ntrireme COMMAND --help lists a command's flags; trireme --version prints the version.\n\n"
      "Exit codes:\n";
  for (const ExitMeaning& one : exit_meanings()) text += cat("  ", one.code, "  ", one.meaning, "\n");
  text += "  1  validate, verify or plan did its work, and the answer is no\n";
  return text;
}

int run_one_of(const std::string& command, const std::vector<Command>& parts,
               const std::vector<std::string>& arguments) {
  const std::string which = arguments.empty() ? "" : arguments[0];
  if (asks_for_help(which)) {
    std::cout << "usage: trireme " << command << " " << joined(parts, "|", &Command::name)
              << " [--flag value ...] (see --help of each)\n"
              << summaries(parts);
    return 0;
  }
  for (const Command& part : parts)
    if (part.name == which) return part.run({arguments.begin() + 1, arguments.end()});
  throw ConfigError(cat("trireme ", command, which.empty() ? "" : " ", quotation(which), ": expected one of ",
                        joined(parts, ", ", &Command::name), "; see trireme ", command, " --help"));
}

}  // namespace trireme
