// What Trireme says of a tokenizer that it does not read: which kind it is, and what works now.
#pragma once

#include <string>

namespace trireme {

// Throws ConfigError: "`origin`: `what`", then the two things that can be done.
[[noreturn]] void refuse_tokenizer(const std::string& origin, const std::string& what);

}  // namespace trireme
