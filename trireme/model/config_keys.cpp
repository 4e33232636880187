#include "trireme/model/config_keys.h"

#include <cmath>
#include <limits>

#include "trireme/base/error.h"

namespace trireme {
namespace {

bool beyond_63_bits(const Json& number) {
  return number.is_number_unsigned() &&
         number.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace

bool is_filled(const Json& config, const std::string& key) {
  const auto found = config.find(key);
  return found != config.end() && !found->is_null() && !(found->is_object() && found->empty());
}

ConfigKeys::ConfigKeys(const Json& json, const std::string& origin, const std::string& prefix,
                       std::set<std::string>* asked)
    : json_(&json), origin_(origin), prefix_(prefix), asked_(asked) {
  if (!json.is_object())
    throw ConfigError(cat(origin, ": ", prefix.empty() ? "the file" : prefix.substr(0, prefix.size() - 1),
                          " holds ", json.type_name(), ", expected a JSON object"));
}

const Json* ConfigKeys::find(const std::string& key) const {
  if (asked_ != nullptr) asked_->insert(key);
  const auto found = json_->find(key);
  return found == json_->end() ? nullptr : &*found;
}

bool ConfigKeys::contains(const std::string& key) const {
  return find(key) != nullptr;
}

bool ConfigKeys::has(const std::string& key) const {
  const Json* found = find(key);
  return found != nullptr && !found->is_null();
}

bool ConfigKeys::is_filled(const std::string& key) const {
  return has(key) && trireme::is_filled(*json_, key);
}

ConfigKeys ConfigKeys::inside(const std::string& key) const {
  static const Json nothing = Json::object();
  return {has(key) ? (*json_)[key] : nothing, origin_, cat(prefix_, key, ".")};
}

int64_t ConfigKeys::integer(const std::string& key, int64_t fallback) const {
  return integer_or_null(key, fallback).value_or(fallback);
}

std::optional<int64_t> ConfigKeys::integer_or_null(const std::string& key,
                                                   std::optional<int64_t> fallback) const {
  const Json* found = find(key);
  if (found == nullptr) return fallback;
  if (found->is_null()) return std::nullopt;
  if (!found->is_number_integer()) wrong_type(key, "a whole number");
  if (beyond_63_bits(*found)) wrong_type(key, "a whole number of 63 bits");
  return found->get<int64_t>();
}

int64_t ConfigKeys::size(const std::string& key, int64_t fallback, int64_t largest) const {
  const int64_t value = integer(key, fallback);
  if (value < 1 || value > largest) refuse(key, cat("expected 1 to ", largest));
  return value;
}

double ConfigKeys::number(const std::string& key, double fallback) const {
  return number_or_null(key).value_or(fallback);
}

std::optional<double> ConfigKeys::number_or_null(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  const Json& value = (*json_)[key];
  if (!value.is_number() || !std::isfinite(value.get<double>())) wrong_type(key, "a finite number");
  return value.get<double>();
}

std::optional<int64_t> ConfigKeys::first_integer(const std::string& key,
                                                 std::optional<int64_t> fallback) const {
  if (!has(key) || !(*json_)[key].is_array()) return integer_or_null(key, fallback);
  const Json& list = (*json_)[key];
  if (list.empty() || !list[0].is_number_integer() || beyond_63_bits(list[0]))
    refuse(key, "expected a token id or a list of token ids");
  return list[0].get<int64_t>();
}

std::string ConfigKeys::first_text(const std::string& key) const {
  if (!has(key)) return "";
  const Json& list = (*json_)[key];
  return list.is_array() && !list.empty() && list[0].is_string() ? list[0].get<std::string>() : "";
}

bool ConfigKeys::is_null(const std::string& key) const {
  return contains(key) && !has(key);
}

bool ConfigKeys::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!(*json_)[key].is_boolean()) wrong_type(key, "true or false");
  return (*json_)[key].get<bool>();
}

std::string ConfigKeys::text(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!(*json_)[key].is_string()) wrong_type(key, "text");
  return (*json_)[key].get<std::string>();
}

void ConfigKeys::refuse(const std::string& key, const std::string& why) const {
  const auto found = json_->find(key);
  throw ConfigError(cat(origin_, ": ", prefix_, key, " is ",
                        found == json_->end() ? "absent" : quotation(*found), ": ", why));
}

void ConfigKeys::refuse_unless_absent(std::initializer_list<const char*> forbidden,
                                      const std::string& why) const {
  for (const char* key : forbidden)
    if (has(key)) refuse(key, why);
}

void ConfigKeys::refuse_unless_none(std::initializer_list<const char*> forbidden,
                                    const std::string& why) const {
  for (const char* key : forbidden)
    if (has(key) && (*json_)[key] != 0) refuse(key, why);
}

void ConfigKeys::refuse_unless_multiple(const char* key, int64_t value, const char* divisor_key,
                                        int64_t divisor) const {
  if (value % divisor != 0)
    throw ConfigError(
        cat(origin_, ": ", key, " ", value, " is not a multiple of ", divisor_key, " ", divisor));
}

void ConfigKeys::wrong_type(const std::string& key, const char* expected) const {
  throw ConfigError(
      cat(origin_, ": ", prefix_, key, " is ", quotation((*json_)[key]), ", expected ", expected));
}

}  // namespace trireme
