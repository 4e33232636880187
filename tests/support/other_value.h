// A value that an option does not have, for tests that go over all options of a list.
#pragma once

#include <stdexcept>

#include "trireme/base/option_list.h"

namespace trireme::testing {

inline Json other_value(const Option& option) {
  const Json now = option.read();
  switch (option.type) {
    case OptionType::boolean:
      return !now.get<bool>();
    case OptionType::choice:
      for (const std::string& choice : option.choices)
        if (choice != now && choice != "all") return choice;
      break;
    case OptionType::count:
    case OptionType::real:
      for (const double candidate :
           {now.is_null() ? 0.0 : now.get<double>() + 1, 0.25, option.range->least, option.range->least + 1})
        if (option.range->holds(candidate) && candidate != now)
          return option.type == OptionType::count ? Json(static_cast<int64_t>(candidate)) : Json(candidate);
      break;
    case OptionType::paths:
      return Json{"other"};
    case OptionType::text:
    case OptionType::path:
      return "other";
  }
  throw std::logic_error("--" + option.name + " has no other value");
}

// As a flag gives it.
inline std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace trireme::testing
