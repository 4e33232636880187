#include "trireme/comm/post_board.h"

#include <stdexcept>

#include "trireme/base/error.h"

namespace trireme {

void PostBoard::exchange(const Post& post, std::chrono::milliseconds timeout,
                         const std::function<void()>& copy) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  show(post);
  wait_for_all(deadline);
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
  wait_for_all(deadline);
  withdraw();
}

std::string timed_out_without(const std::vector<int>& missing_world_ranks) {
  std::string missing;
  for (const int rank : missing_world_ranks) missing += cat(missing.empty() ? "" : ", ", rank);
  return cat("timed out; did not come: rank ", missing);
}

}  // namespace trireme
