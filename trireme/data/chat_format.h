// How the chats of a set are written: the tokens in which their answers end, and their chat template. A model
// that is trained on them stops there, and is asked in that form.
//
//   {..., "answer_end_tokens": {"<|im_end|>": 151645}, "chat_template": "{% for message in ..."}
//
// Stands in PREFIX.set.json (python -m trireme.chats) and, as "chats", in a checkpoint's trainer_state.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

struct ChatFormat {
  std::map<std::string, int64_t> end_tokens = {};  // their ids
  std::string chat_template = {};                  // empty: not told

  bool empty() const { return end_tokens.empty() && chat_template.empty(); }
};

// Fields that are absent stay empty. Throws DataError.
ChatFormat parse_chat_format(const Json& json, const std::string& origin);
// Writes the fields that are not empty into an object.
void write_chat_format(const ChatFormat& format, Json& json);
// Adds what `other` has; a template where there is none yet. False: `other` has another one, which is not taken.
bool join(ChatFormat& format, const ChatFormat& other);
// Of all these sets together; of texts, and of sets of other programs, nothing. Of several templates the
// first is taken, and `note` is told.
ChatFormat chat_format_of_sets(const std::vector<std::filesystem::path>& prefixes,
                               const std::function<void(const std::string&)>& note);

}  // namespace trireme
