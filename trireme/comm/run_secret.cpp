#include "trireme/comm/run_secret.h"

#include <charconv>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/base/secret_digits.h"

namespace trireme {
namespace {

std::string bytes_of_digits(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(digits.data() + i, digits.data() + i + 2, value, 16);
    bytes.push_back(static_cast<char>(value));
  }
  return bytes;
}

}  // namespace

std::optional<RunSecret> given_secret() {
  if (const auto digits = environment("TRIREME_SECRET"))
    return RunSecret{bytes_of_digits(checked_secret_digits(*digits, "environment variable TRIREME_SECRET")),
                     "TRIREME_SECRET", false};
  if (const auto file = environment("TRIREME_SECRET_FILE"))
    return RunSecret{bytes_of_digits(read_secret_file(*file)), "TRIREME_SECRET_FILE", false};
  return std::nullopt;
}

RunSecret derived_secret(const std::string& origin, const std::string& shared) {
  return {cat("derived ", origin, " ", shared), origin, true};
}

}  // namespace trireme
