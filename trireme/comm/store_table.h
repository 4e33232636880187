// The keys and values that ranks share, and the answers to their requests; as c10d's TCPStore answers.
#pragma once

#include <map>
#include <string>

#include "trireme/comm/store_messages.h"

namespace trireme {

class StoreTable {
 public:
  bool has(const std::string& key) const { return values_.count(key) != 0; }
  // Of a get, whose keys are all there, the values. Throws std::runtime_error for arguments that no request has.
  Texts answer(StoreRequest request, const Texts& arguments);

 private:
  std::string add(const std::string& key, const std::string& number);
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& desired);

  std::map<std::string, std::string> values_;
};

}  // namespace trireme
