// The error for a tokenizer that Trireme does not read: its kind, and what works instead.
#pragma once

#include <string>

namespace trireme {

// Throws ConfigError: "`origin`: `what`", then the two things that the user can do.
[[noreturn]] void refuse_tokenizer(const std::string& origin, const std::string& what);

}  // namespace trireme
