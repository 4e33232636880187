#include "trireme/data/line_reader.h"

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme {

std::string LineReader::origin() const {
  return cat(file_.path().string(), ":", line_);
}

bool LineReader::next(std::string& line) {
  constexpr int64_t kBlockBytes = int64_t{1} << 18;
  line.clear();
  ++line_;
  while (true) {
    if (at_ == block_.size()) {
      block_.resize(kBlockBytes);
      block_.resize(static_cast<size_t>(file_.read_some(read_bytes_, block_.data(), kBlockBytes)));
      read_bytes_ += static_cast<int64_t>(block_.size());
      at_ = 0;
      if (block_.empty()) return !line.empty();
    }
    const size_t end = std::min(block_.find('\n', at_), block_.size());
    line.append(block_, at_, end - at_);
    at_ = end;
    if (static_cast<int64_t>(line.size()) > kLargestDocumentBytes)
      throw DataError(cat(origin(), ": the line is longer than ", kLargestDocumentBytes,
                          " bytes, which one document may have: split it"));
    if (end == block_.size()) continue;
    ++at_;
    return true;
  }
}

}  // namespace trireme
