// The keys and values that ranks share. Answers requests as c10d's TCPStore does.
#pragma once

#include <map>
#include <string>

#include "trireme/comm/store_messages.h"

namespace trireme {

class StoreTable {
 public:
  bool has(const std::string& key) const { return values_.count(key) != 0; }
  // The answer to a request. The key of a `get` must exist. Throws std::runtime_error for invalid arguments.
  Texts answer(StoreRequest request, const Texts& arguments);

 private:
  std::string add(const std::string& key, const std::string& number);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);

  std::map<std::string, std::string> values_;
};

}  // namespace trireme
