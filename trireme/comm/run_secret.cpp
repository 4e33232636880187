#include "trireme/comm/run_secret.h"

#include <cstdint>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/parse_whole.h"
#include "trireme/base/secret_digits.h"

namespace trireme {
namespace {

std::string bytes_of_digits(const std::string& digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(
        static_cast<char>(parse_whole<uint8_t>(std::string_view(digits).substr(i, 2), 16).value()));
  return bytes;
}

}  // namespace

std::optional<RunSecret> given_secret() {
  const auto given = secret_of_environment();
  if (!given) return std::nullopt;
  return RunSecret{bytes_of_digits(given->digits), given->variable, false};
}

RunSecret derived_secret(const std::string& origin, const std::string& shared) {
  return {cat("derived ", origin, " ", shared), origin, true};
}

}  // namespace trireme
