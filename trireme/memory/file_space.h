// Tracks which bytes of a file are taken. Allocates first fit from a list of the free stretches.
#pragma once

#include <cstdint>
#include <map>

namespace trireme {

class FileSpace {
 public:
  // Takes `bytes` > 0 and returns their offset: in the first free stretch that fits, else at the end.
  int64_t take(int64_t bytes);
  // Frees `bytes` at `offset`. InternalError when some of them are free already.
  void give_back(int64_t offset, int64_t bytes);
  // No byte at or after this offset is taken.
  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> free_;  // offset -> bytes; no stretch touches another one or the end
  int64_t end_ = 0;
};

}  // namespace trireme
