// Typed access to the keys of a config.json, with errors that name the file and the key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "trireme/base/json.h"

namespace trireme {

bool is_filled(const Json& config, const std::string& key);  // neither absent, null, nor an empty object

class ConfigKeys {
 public:
  // `prefix` is the path inside the file, such as "rope_scaling.". ConfigError when `json` is not an object.
  // Keys that are asked for are added to `asked`, where it is given.
  ConfigKeys(const Json& json, const std::string& origin, const std::string& prefix = "",
             std::set<std::string>* asked = nullptr);

  const Json& json() const { return *json_; }
  const std::string& origin() const { return origin_; }
  bool contains(const std::string& key) const;
  bool has(const std::string& key) const;      // present and not null
  bool is_null(const std::string& key) const;  // present
  bool is_filled(const std::string& key) const;
  // Those of the object that `key` holds; none where it is absent or null.
  ConfigKeys inside(const std::string& key) const;

  // An absent key gives `fallback`; null too where `_or_null` is not in the name. A wrong type: ConfigError.
  int64_t integer(const std::string& key, int64_t fallback) const;
  // From 1 to `largest`.
  int64_t size(const std::string& key, int64_t fallback, int64_t largest = int64_t{1} << 31) const;
  double number(const std::string& key, double fallback) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  // An absent key gives `fallback`, null gives nothing.
  std::optional<int64_t> integer_or_null(const std::string& key, std::optional<int64_t> fallback) const;
  std::optional<double> number_or_null(const std::string& key) const;
  // A whole number, or the first of a list of them; otherwise as integer_or_null.
  std::optional<int64_t> first_integer(const std::string& key, std::optional<int64_t> fallback) const;
  // The first of a list of texts; empty when the key is absent or holds something else.
  std::string first_text(const std::string& key) const;

  // ConfigError: "FILE: KEY is VALUE: WHY".
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;
  void refuse_unless_absent(std::initializer_list<const char*> forbidden, const std::string& why) const;
  // Of counts and widths, where published files say none by 0.
  void refuse_unless_none(std::initializer_list<const char*> forbidden, const std::string& why) const;
  // `value` and `divisor` are the keys', or what their absence means.
  void refuse_unless_multiple(const char* key, int64_t value, const char* divisor_key, int64_t divisor) const;

 private:
  const Json* find(const std::string& key) const;  // null: it is absent
  [[noreturn]] void wrong_type(const std::string& key, const char* expected) const;

  const Json* json_;
  std::string origin_;
  std::string prefix_;
  std::set<std::string>* asked_;
};

}  // namespace trireme
