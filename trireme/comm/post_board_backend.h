// A c10d backend whose ranks copy from each other through a post board: alltoall_base, allgather, broadcast
// and barrier, of rows of bytes, and reduce_scatter in rank order. A collective is done when its call
// returns. On a GPU that ranks share, a rank waits for its stream before it posts and after it has copied.
#pragma once

#include <memory>
#include <string_view>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "trireme/comm/post_board.h"

namespace trireme {

// `name`: of backend_library.h.
c10::intrusive_ptr<c10d::Backend> make_post_board_backend(std::string_view name,
                                                          std::unique_ptr<PostBoard> board,
                                                          std::chrono::milliseconds timeout);

}  // namespace trireme
