#include "trireme/cli/changed_options.h"

#include <algorithm>
#include <set>
#include <vector>

namespace trireme {
namespace {

struct Row {
  std::string name, value, source;
};

std::string shown(const Json& value) {
  if (value.is_number()) return number_text(value.get<double>());
  return quotation(value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

std::string changed_options_text(const OptionParser& parser, const TrainOptions& resolved) {
  const Json defaults = to_json(TrainOptions()), config = to_json(resolved);
  std::vector<Row> rows;
  std::set<std::string> met;
  for (const Option& option : parser.options()) {
    // `device` is a flag, and what became of it.
    if (!met.insert(option.name).second) continue;
    const std::string source = parser.source_of(option.name);
    if (!config.contains(option.name)) {  // of this process, or another name of an option
      if (!source.empty()) rows.push_back({option.name, shown(option.read()), source});
    } else if (config[option.name] != defaults[option.name]) {
      rows.push_back({option.name, shown(config[option.name]), source.empty() ? "follows" : source});
    }
  }
  size_t name_width = 0, value_width = 0;
  for (const Row& row : rows) {
    name_width = std::max(name_width, row.name.size());
    value_width = std::max(value_width, std::min<size_t>(row.value.size(), 30));
  }
  std::string text;
  for (const Row& row : rows) {
    const auto padded = [](const std::string& word, size_t width) {
      return word + std::string(width > word.size() ? width - word.size() : 0, ' ');
    };
    text +=
        cat("  ", padded(row.name, name_width), "  ", padded(row.value, value_width), "  ", row.source, "\n");
  }
  return text;
}

}  // namespace trireme
