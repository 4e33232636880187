// tokenizer_config.json tells transformers' tokenizers at how many tokens to cut a text (model_max_length).
// Beside a model that was trained for a longer context it would still tell the old length.
#pragma once

#include <filesystem>

namespace trireme {

// `to` is a model's folder with its config.json and the tokenizer files of `from`. Where its model reaches
// further than that of `from`, a model_max_length below its positions becomes their number. Every other byte
// of the file stays, and the whole file where it has no such number or a config.json cannot be read. Throws
// DataError when the file cannot be written.
void lengthen_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace trireme
