// The names of an enum's values, as flags, config.json and messages write them. One table beside each enum,
//
//   constexpr auto enum_names(Offload) {
//     return std::to_array<EnumName<Offload>>({{Offload::none, "none"}, {Offload::cpu, "cpu"}});
//   }
//
// gives name_of, its inverse value_named, and the choices of an option (option_list.h).
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "trireme/base/error.h"

namespace trireme {

template <typename E>
struct EnumName {
  E value;
  const char* name;
};

template <typename E>
concept NamedEnum = requires(E value) {
  enum_names(value);
};

template <NamedEnum E>
const char* name_of(E value) {
  for (const auto& [known, name] : enum_names(value))
    if (known == value) return name;
  throw InternalError(cat("value ", static_cast<int64_t>(value), " of an enum has no name"));
}

template <NamedEnum E>
std::optional<E> value_named(std::string_view text) {
  for (const auto& [value, name] : enum_names(E{}))
    if (text == name) return value;
  return std::nullopt;
}

}  // namespace trireme
