// What the stores know of a unit of the model: one flat buffer of values, some spans of which do not decay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct FlatSpan {
  int64_t offset = 0;  // elements
  int64_t elements = 0;
  bool decays = true;
};

struct FlatUnit {
  std::string name;
  int64_t elements = 0;
  std::vector<FlatSpan> spans;  // of parameters; padding between them belongs to none
};

}  // namespace trireme
