#include "trireme/base/rank_list.h"

#include "trireme/base/error.h"

namespace trireme {

std::string rank_list(const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  bool first = true;
  for (auto begin = ranks.begin(); begin != ranks.end();) {
    auto end = begin;
    int last = *begin;
    while (++end != ranks.end() && *end == last + 1) ++last;
    text += cat(first ? "" : ", ", *begin);
    if (last > *begin) text += cat(last == *begin + 1 ? ", " : "-", last);
    first = false;
    begin = end;
  }
  return text;
}

}  // namespace trireme
