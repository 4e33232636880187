// Flags that nothing reads beside the others. What a file gives is left alone: the config.json of a run has
// every option, and a file of another system its own habits. All throw ConfigError that names the flag and
// what would read it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "trireme/cli/option_parser.h"
#include "trireme/train/train_options.h"

namespace trireme {

// Above 0, the first counts and the second does not. Transformers lets it; here the second is refused.
inline constexpr std::pair<const char*, const char*> kCountsOver[] = {{"warmup_steps", "warmup_ratio"},
                                                                      {"max_steps", "num_train_epochs"}};

// Of LoRA, without it or beside the folder of an adapter, which says them itself.
void refuse_unread_lora_flags(const OptionParser& parser, const LoraOptions& lora);

// If `unread`, throws where `flag` was given: "--FLAG means nothing READER, or leave it out".
void refuse_unread_flag(const OptionParser& parser, bool unread, const std::string& flag,
                        const std::string& reader);
// Flags that say how lines of .jsonl files are read: `field_flag`, and --on_bad_record.
void refuse_flags_of_lines(const OptionParser& parser, const std::vector<std::filesystem::path>& text,
                           const std::string& field_flag);
// Flags that say how text is read, of a command that reads `data`: text and tokenized sets.
void refuse_unread_text_flags(const OptionParser& parser, const std::vector<std::filesystem::path>& data);
// Flags of train.
void refuse_unread_flags(const OptionParser& parser, const TrainOptions& options);

}  // namespace trireme
