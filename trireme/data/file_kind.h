// Whether a file is text, by its first bytes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

// nullopt: text. Else the kind and what to do, to print after the file's name: "is compressed by gzip: unpack
// it". Throws DataError when the file cannot be read.
std::optional<std::string> why_not_text(const std::filesystem::path& file);

}  // namespace trireme
