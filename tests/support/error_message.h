// What an action that should be refused says.
#pragma once

#include <string>

namespace trireme::testing {

// The message of the E that `action` throws, "no error" if it throws nothing; another kind goes on to the
// caller.
template <typename E, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace trireme::testing
