// The small files of a model that say how it is used in chats, as they are when it was trained on some:
//
//   generation_config.json   eos_token_id has the tokens in which answers end, so that generation stops there
//   chat_template.jinja      the template by which the chats were written
//
// A base model has its end of text alone there, and would run on behind each answer; it may have no template,
// or another. The model's own folder stays as it is: checkpoints have these files in place of its.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/base/json.h"
#include "trireme/data/chat_format.h"

namespace trireme {

struct ChatFiles {
  std::map<std::string, std::string> texts;  // by file name: those that differ from the model's
  std::vector<std::string> notes;            // for people, a line for each
};
// `adapter`: a folder of LoRA that training begins with, which may say more than the model's; else empty.
// Throws DataError.
ChatFiles chat_files(const ChatFormat& chats, const std::filesystem::path& model,
                     const std::filesystem::path& adapter = {});

inline constexpr const char* kSavedChats = "chats";  // of trainer_state.json
// Of the sets of a checkpoint's run; of other folders nothing. Throws DataError.
ChatFormat saved_chat_format(const std::filesystem::path& folder);

}  // namespace trireme
