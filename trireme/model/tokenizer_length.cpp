#include "trireme/model/tokenizer_length.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/model/model_config.h"
#include "trireme/model/rope_override.h"
#include "trireme/model/tokenizer_files.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int64_t kLargestConfigBytes = int64_t{256} << 20;

struct ValueSpan {
  size_t begin = 0;
  size_t size = 0;
};

// Of the number, or word, under `key` in the outermost object of a JSON text. Of equal keys the last counts.
// Found without a JSON parser, so that all other bytes stay.
std::optional<ValueSpan> find_value(const std::string& text, std::string_view key) {
  constexpr const char* kSpace = " \t\r\n";
  std::optional<ValueSpan> found;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '}' || text[i] == ']') --depth;
    if (text[i] != '"') continue;
    const size_t begin = ++i;
    while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    if (depth != 1 || std::string_view(text).substr(begin, i - begin) != key) continue;
    const size_t colon = text.find_first_not_of(kSpace, i + 1);
    if (colon == std::string::npos || text[colon] != ':') continue;
    const size_t value = text.find_first_not_of(kSpace, colon + 1);
    if (value == std::string::npos) break;
    found = {value, std::min(text.size(), text.find_first_of(" \t\r\n,}", value)) - value};
  }
  return found;
}

// The positions that the model in `to` has, where they are more than those of the model in `from`.
std::optional<int64_t> more_positions(const fs::path& from, const fs::path& to) {
  try {
    const int64_t positions = position_reach(read_model_config(to));
    if (positions > position_reach(read_model_config(from))) return positions;
  } catch (const Error&) {
    // No reason to lose a checkpoint.
  }
  return std::nullopt;
}

}  // namespace

void lengthen_tokenizer(const fs::path& from, const fs::path& to) {
  const fs::path file = to / kTokenizerConfigFile;
  if (!is_there(file) || !is_there(from / "config.json")) return;
  const std::optional<int64_t> positions = more_positions(from, to);
  if (!positions) return;
  std::string text = InputFile(file).whole(kLargestConfigBytes);
  const std::optional<ValueSpan> span = find_value(text, "model_max_length");
  if (!span) return;
  const std::string written = text.substr(span->begin, span->size);
  char* end = nullptr;
  const double tokens = std::strtod(written.c_str(), &end);
  // Files without a limit have 1e30.
  if (*end != '\0' || !(tokens > 0 && tokens < static_cast<double>(*positions))) return;
  replace_file(file, text.replace(span->begin, span->size, std::to_string(*positions)));
}

}  // namespace trireme
