// Which bytes of a file are taken: first fit over a list of the free stretches between them.
#pragma once

#include <cstdint>
#include <map>

namespace trireme {

class FileSpace {
 public:
  // The offset of a stretch of `bytes` > 0: the first free one that holds it, else at the end.
  int64_t take(int64_t bytes);
  // `bytes` at `offset` are free again. InternalError when some of them are already.
  void give_back(int64_t offset, int64_t bytes);
  // Nothing at or behind this offset is taken.
  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> free_;  // offset -> bytes, never touching each other or the end
  int64_t end_ = 0;
};

}  // namespace trireme
