#include "trireme/comm/store_table.h"

#include <algorithm>
#include <stdexcept>

namespace trireme {

std::string StoreTable::add(const std::string& key, const std::string& number) {
  const auto known = values_.find(key);
  const int64_t sum = (known == values_.end() ? 0 : std::stoll(known->second)) + std::stoll(number);
  return values_[key] = std::to_string(sum);
}

std::string StoreTable::compare_set(const std::string& key, const std::string& expected,
                                    const std::string& desired) {
  const auto known = values_.find(key);
  if (known == values_.end()) return expected.empty() ? values_[key] = desired : expected;
  if (known->second == expected) known->second = desired;
  return known->second;
}

Texts StoreTable::answer(StoreRequest request, const Texts& arguments) {
  const auto expect = [&](bool holds) {
    if (!holds) throw std::runtime_error("a request with other arguments");
  };
  switch (request) {
    case StoreRequest::set:
      expect(arguments.size() == 2);
      values_[arguments[0]] = arguments[1];
      return {};
    case StoreRequest::get:
      expect(arguments.size() == 1);
      return {values_.at(arguments[0])};
    case StoreRequest::wait:
    case StoreRequest::goodbye:
      return {};
    case StoreRequest::check: {
      const bool all =
          std::all_of(arguments.begin(), arguments.end(), [&](const auto& key) { return has(key); });
      return {all ? "1" : "0"};
    }
    case StoreRequest::add:
      expect(arguments.size() == 2);
      return {add(arguments[0], arguments[1])};
    case StoreRequest::compare_set:
      expect(arguments.size() == 3);
      return {compare_set(arguments[0], arguments[1], arguments[2])};
    case StoreRequest::remove:
      expect(arguments.size() == 1);
      return {values_.erase(arguments[0]) != 0 ? "1" : "0"};
    case StoreRequest::count:
      return {std::to_string(values_.size())};
  }
  throw std::runtime_error("an unknown request");
}

}  // namespace trireme
