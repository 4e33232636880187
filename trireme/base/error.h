// The five kinds of error, by who can fix the cause. Every message says what happened, what was found, what
// was expected, and what to do.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace trireme {

// Base of all errors that Trireme throws on purpose. The program exits with `exit_code`.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, int exit_code) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }
  virtual const char* kind() const { return "Error"; }

 private:
  int exit_code_;
};

// The user asked for something impossible and can change the request.
class ConfigError : public Error {
 public:
  static constexpr int kExitCode = 78;
  explicit ConfigError(const std::string& message) : Error(message, kExitCode) {}
  const char* kind() const override { return "ConfigError"; }
};

// A file has invalid content. The message names the file and the offset, line or tensor.
class DataError : public Error {
 public:
  static constexpr int kExitCode = 65;
  explicit DataError(const std::string& message) : Error(message, kExitCode) {}
  const char* kind() const override { return "DataError"; }
};

// A DataError that every rank throws together: ranks may still use collectives.
class DataErrorOnAllRanks : public DataError {
 public:
  using DataError::DataError;
};

// Another rank did not answer. The message names this rank, the collective, the peers and the seconds waited.
class CommError : public Error {
 public:
  static constexpr int kExitCode = 75;
  explicit CommError(const std::string& message) : Error(message, kExitCode) {}
  const char* kind() const override { return "CommError"; }
};

// A machine failed, and a restart may cure it: its GPU, or a file system over the network.
class SystemFault : public Error {
 public:
  static constexpr int kExitCode = 75;
  explicit SystemFault(const std::string& message) : Error(message, kExitCode) {}
  const char* kind() const override { return "SystemFault"; }
};

// A bug in Trireme.
class InternalError : public Error {
 public:
  static constexpr int kExitCode = 70;
  explicit InternalError(const std::string& message) : Error(message, kExitCode) {}
  const char* kind() const override { return "InternalError"; }
};

// Joins its arguments as text: cat("got ", 3, " heads").
template <typename... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Makes text from outside safe for a message: cuts it after about 200 bytes and gives its length, and writes
// control characters as \xNN. Adds no quotation marks.
std::string quotation(std::string_view text);

// Throws InternalError with file and line if an internal condition does not hold.
#define TRIREME_ASSERT(condition, ...)                                                                   \
  do {                                                                                                   \
    if (!(condition))                                                                                    \
      throw ::trireme::InternalError(                                                                    \
          ::trireme::cat(__FILE__, ":", __LINE__, ": ", #condition, " does not hold. ", ##__VA_ARGS__)); \
  } while (false)

}  // namespace trireme
