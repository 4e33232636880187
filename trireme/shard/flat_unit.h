// What the stores and the optimizer know of a unit of the model: one flat buffer of values, cut into spans,
// each a parameter or, in a rank's share, a slice of one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme {

struct FlatSpan {
  int64_t offset = 0;    // elements from the start of the buffer
  int64_t elements = 0;  // of the slice
  bool decays = true;
  std::string name = {};            // the parameter's
  std::vector<int64_t> shape = {};  // of the whole parameter
  int64_t first = 0;                // the slice's first element in the whole parameter, row by row
};

struct FlatUnit {
  std::string name;
  int64_t elements = 0;         // with the padding that makes shares equal (unit_shares.h)
  std::vector<FlatSpan> spans;  // padding between and behind them belongs to none
  int64_t begin = 0;            // of a share: its first element in the whole unit
};

}  // namespace trireme
