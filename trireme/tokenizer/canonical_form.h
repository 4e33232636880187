// Unicode's canonical forms, as the Hugging Face tokenizers library makes them (unicode_versions.h).
#pragma once

#include <string>
#include <string_view>

namespace trireme {

enum class CanonicalForm { composed, decomposed };  // NFC, NFD

// Throws DataError for a text that is too long. `text` must be valid UTF-8.
std::string canonical_form(std::string_view text, CanonicalForm form);

// False only for a text that is its own canonical form; reads bytes alone.
bool may_change_when_composed(std::string_view text);
bool may_change_when_decomposed(std::string_view text);

}  // namespace trireme
