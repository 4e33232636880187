#include "trireme/data/chat_format.h"

#include "trireme/base/folder_entries.h"
#include "trireme/data/set_fingerprint.h"
#include "trireme/data/tokenizer_vocabulary.h"

namespace trireme {
namespace {

constexpr const char* kEndTokens = "answer_end_tokens";
constexpr const char* kTemplate = "chat_template";

}  // namespace

ChatFormat parse_chat_format(const Json& json, const std::string& origin) {
  ChatFormat format;
  format.chat_template = text_value(json, kTemplate, origin, "");
  if (find_field(json, kEndTokens, origin) == nullptr) return format;
  for (const auto& [token, id] : object_value(json, kEndTokens, origin).items())
    format.end_tokens[token] =
        whole_number(id, {0, kLargestId}, cat(origin, ": ", kEndTokens, ": ", quotation(token)));
  return format;
}

void write_chat_format(const ChatFormat& format, Json& json) {
  if (!format.end_tokens.empty()) json[kEndTokens] = format.end_tokens;
  if (!format.chat_template.empty()) json[kTemplate] = format.chat_template;
}

bool join(ChatFormat& format, const ChatFormat& other) {
  format.end_tokens.insert(other.end_tokens.begin(), other.end_tokens.end());
  if (format.chat_template.empty()) format.chat_template = other.chat_template;
  return other.chat_template.empty() || other.chat_template == format.chat_template;
}

ChatFormat chat_format_of_sets(const std::vector<std::filesystem::path>& prefixes,
                               const std::function<void(const std::string&)>& note) {
  ChatFormat format;
  std::filesystem::path first;  // with a template
  for (const std::filesystem::path& prefix : prefixes) {
    const std::filesystem::path file = set_fingerprint_file(prefix);
    if (!is_name_taken(file)) continue;
    const ChatFormat of_set = parse_chat_format(read_json(file), file.string());
    if (first.empty() && !of_set.chat_template.empty()) first = file;
    if (!join(format, of_set))
      note(cat("the chats of ", first.string(), " and ", file.string(),
               " are written by two chat templates: that of the former is taken"));
  }
  return format;
}

}  // namespace trireme
