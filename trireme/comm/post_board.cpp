#include "trireme/comm/post_board.h"

#include <stdexcept>

#include "trireme/base/error.h"
#include "trireme/base/joined.h"

namespace trireme {

void PostBoard::exchange(const Post& post, std::chrono::milliseconds timeout,
                         const std::function<void()>& copy) {
  // Each wait has the whole time: what others copy does not count against a rank that came late.
  const auto wait = [&] { wait_for_all(std::chrono::steady_clock::now() + timeout); };
  throw_if_broken();  // the others may still read what this rank showed when the board broke
  show(post);
  wait();
  try {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (collective(peer) != post.collective)
        throw std::runtime_error(cat("rank ", world_ranks_[rank_], " is in ", post.collective, " while rank ",
                                     world_ranks_[peer], " is in ", collective(peer)));
    }
    copy();
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
  wait();
  withdraw();
}

std::string timed_out_without(const std::vector<int>& missing_world_ranks) {
  return cat("timed out; did not come: rank ", joined(missing_world_ranks));
}

}  // namespace trireme
