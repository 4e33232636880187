#include "trireme/cli/config.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/split.h"
#include "trireme/cli/batch_arithmetic.h"
#include "trireme/cli/config_document.h"
#include "trireme/cli/deepspeed_config.h"
#include "trireme/cli/train.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kUsage =
    "usage: trireme config show FILE\n       trireme config fix FILE [--ranks N] [--output FILE]\n";

// [begin, end) of the value under `path` in text that is JSON; empty where there is none.
std::string_view value_text_of(const std::string& text, const std::vector<std::string>& path) {
  size_t depth = 0, matched = 0;  // of objects that are open; how many of them are on the path
  bool is_key = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '{' || c == '[') {
      ++depth;
      is_key = c == '{';
    } else if (c == '}' || c == ']') {
      matched = std::min(matched, --depth == 0 ? 0 : depth - 1);
    } else if (c == ',') {
      is_key = true;
    } else if (c == '"') {
      const size_t begin = i;
      while (text[++i] != '"')
        if (text[i] == '\\') ++i;
      if (!std::exchange(is_key, false) || matched + 1 != depth || matched >= path.size() ||
          parse_json(text.substr(begin, i + 1 - begin), "a key") != path[matched])
        continue;
      const size_t value = text.find_first_not_of(" \t\r\n", text.find(':', i) + 1);
      if (++matched < path.size()) continue;
      size_t end = text.find_first_of(",}] \t\r\n", value);
      if (text[value] == '"') end = text.find('"', value + 1) + 1;
      return std::string_view(text).substr(value, end - value);
    }
  }
  return {};
}

void replace_value(MendedText& mended, const std::string& dotted, const std::string& value,
                   const std::string& why) {
  const std::string_view old = value_text_of(mended.text, split(dotted, '.'));
  TRIREME_ASSERT(!old.empty(), dotted, " is not in the text");
  mended.changes.push_back(cat(dotted, ": ", old, " -> ", value, " (", why, ")"));
  mended.text.replace(static_cast<size_t>(old.data() - mended.text.data()), old.size(), value);
}

std::optional<BatchNumber> batch_number(const DeepSpeedConfig& config, const std::string& option,
                                        const std::string& key) {
  for (const GivenValue& value : config.values) {
    if (value.option != option) continue;
    const auto number = value.value.get<int64_t>();
    if (number < 1 || number > kMostBatches)
      throw ConfigError(cat(value.source, " is ", number, "; expected a number from 1 to ", kMostBatches));
    return BatchNumber{number, key};
  }
  return std::nullopt;
}

fs::path beside(const fs::path& file) {
  fs::path name = file;
  return name.replace_filename(file.stem().string() + ".fixed" + file.extension().string());
}

void print_values(const std::vector<GivenValue>& values) {
  for (const GivenValue& value : values)
    std::cout << "--" << value.option << ' ' << quotation(value.value) << "    " << value.source << '\n';
}

// A file for --config: it has an option's name that is no key of DeepSpeed's, or is YAML without any such key.
bool is_for_config(const Json& document, bool in_yaml, const OptionParser& train) {
  bool has_deepspeed_name = false;
  const std::vector<std::string> options = train.names();
  for (const auto& item : document.items()) {
    std::string name = item.key();
    std::ranges::replace(name, '-', '_');
    if (contains(options, name) && !is_deepspeed_name(name)) return true;
    has_deepspeed_name |= is_deepspeed_name(item.key());
  }
  return in_yaml && !has_deepspeed_name;
}

int show(const fs::path& file) {
  const Json document = read_config_document(file).json;
  Declared<TrainFlags> train("train");
  if (is_for_config(document, is_yaml(file), train.parser)) {
    const std::vector<GivenValue> values = values_of_config(document, file.string(), train.parser);
    train.parser.add_file_values(values, Precedence::none);
    print_values(values);
    return 0;
  }
  const DeepSpeedConfig config = read_deepspeed_config(document, file.string());
  print_values(config.values);
  print_values(config.defaults);
  if (config.train_batch)
    std::cout << "samples of a step " << config.train_batch->value << "    " << file.string()
              << ": train_batch_size\n";
  for (const std::string& note : notes_of(config, file.string())) std::cout << note << '\n';
  return 0;
}

int fix(const fs::path& file, const ConfigFlags& flags) {
  if (is_yaml(file))
    throw ConfigError(
        cat(file.string(),
            " is YAML, and config fix changes numbers in the text of a JSON file; change them by "
            "hand, as the message of train says"));
  const MendedText mended = mend_deepspeed_text(read_config_document(file).text, file.string(), flags.ranks);
  if (mended.changes.empty()) {
    std::cout << file.string() << ": its numbers do not contradict each other"
              << (flags.ranks ? "" : "; with --ranks N they are compared for a run of N ranks") << '\n';
    return 0;
  }
  const fs::path output = flags.output.empty() ? beside(file) : flags.output;
  if (is_there(output) && !flags.overwrite)
    throw ConfigError(cat(output.string(), " is there already; give another --output, or --overwrite"));
  replace_file(output, mended.text);
  std::cout << output.string() << ":\n";
  for (const std::string& change : mended.changes) std::cout << "  " << change << '\n';
  return 0;
}

}  // namespace

void ConfigFlags::declare(OptionList& list) {
  list.count("ranks", ranks, from_to(1, kMostRanks), "of the run that the file is for");
  list.path("output", output, "the mended file; not given: NAME.fixed.json beside it");
  list.flag("overwrite", overwrite, "replace a file that is there");
}

MendedText mend_deepspeed_text(const std::string& text, const std::string& file,
                               std::optional<int64_t> ranks) {
  const DeepSpeedConfig config = read_deepspeed_config(parse_json(text, file), file);
  MendedText mended{text, {}};
  RunRanks run{ranks.value_or(0), 1};
  for (const GivenValue& value : config.values)
    if (value.option == "sp" || value.option == "ulysses" || value.option == "ring") {
      run.degree = value.value.get<int64_t>();
      if (run.degree < 1) throw ConfigError(cat(value.source, " is ", run.degree, "; expected 1 or more"));
      if (!ranks || *ranks % run.degree == 0) continue;
      while (*ranks % run.degree != 0) --run.degree;
      replace_value(mended, value.source.substr(file.size() + 2), cat(run.degree),
                    cat("the most of them that ", *ranks, " ranks can be divided by"));
    }
  const BatchNumbers given{
      config.train_batch,
      batch_number(config, "per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
      batch_number(config, "gradient_accumulation_steps", "gradient_accumulation_steps")};
  if (!given.train) return mended;
  if (!ranks) {
    run.ranks = run.degree;
    if (mended_train_batch(given, run))
      replace_value(mended, "train_batch_size", "\"auto\"",
                    "it follows from the others and the ranks of each run; --ranks N writes the number");
    return mended;
  }
  if (const auto train = mended_train_batch(given, run))
    replace_value(mended, "train_batch_size", cat(*train),
                  cat(given.micro && given.accumulation ? "" : "the nearest multiple of ",
                      batch_factors_text(given, run)));
  return mended;
}

int run_config(const std::vector<std::string>& arguments) {
  ConfigFlags flags;
  const std::string action = arguments.empty() ? "" : arguments[0];
  const bool shows = action == "show";
  OptionParser parser(
      shows ? "config show FILE" : "config fix FILE",
      shows ? "Prints the options of trireme train that a file of --config or --deepspeed becomes."
            : "Mends a DeepSpeed configuration whose numbers contradict each other.");
  if (!shows) flags.declare(parser);
  if (action.empty() || asks_for_help(action)) {
    std::cout << kUsage << "\n" << parser.help();
    return action.empty() ? ConfigError::kExitCode : 0;
  }
  if (!shows && action != "fix")
    throw ConfigError(cat("trireme config has no '", quotation(action), "'; ", kUsage));
  const std::vector<std::string> after(arguments.begin() + 1, arguments.end());
  const bool has_file = !after.empty() && !after[0].starts_with("-");
  if (!parser.parse({after.begin() + (has_file ? 1 : 0), after.end()})) return 0;
  if (!has_file) throw ConfigError(cat("trireme config ", action, " needs a file after it; ", kUsage));
  return shows ? show(after[0]) : fix(after[0], flags);
}

}  // namespace trireme
