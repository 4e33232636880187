#include "trireme/comm/post_board_backend.h"

#include <array>
#include <numeric>
#include <stdexcept>

#include "trireme/base/error.h"
#include "trireme/comm/call_time.h"
#include "trireme/comm/finished_work.h"
#include "trireme/comm/rank_order_sum.h"

namespace trireme {
namespace {

class PostBoardBackend : public c10d::Backend {
 public:
  PostBoardBackend(std::string name, std::unique_ptr<PostBoard> board, std::chrono::milliseconds timeout)
      : Backend(board->rank(), board->ranks()),
        name_(std::move(name)),
        board_(std::move(board)),
        timeout_(timeout) {}
  ~PostBoardBackend() override { board_->leave(); }

  const std::string getBackendName() const override { return name_; }
  void shutdown() override { board_->leave(); }
  void abort() override { board_->leave(); }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_bytes,
                                               std::vector<int64_t>& input_bytes,
                                               const c10d::AllToAllOptions& /*options*/) override {
    return run({"alltoall", input, input_bytes}, output.device(), [&] {
      int64_t to = 0;
      for (int peer = 0; peer < size_; ++peer) {
        const int64_t bytes = output_bytes[peer];
        board_->copy_from(peer, begin_of_bytes_from(peer, bytes), output.narrow(0, to, bytes));
        to += bytes;
      }
    });
  }

  // inputs[0][p] is this rank's block for rank p; the blocks follow each other in memory. outputs[0], which
  // may be this rank's block for itself, is the sum in rank order, in a dtype of its own.
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override {
    const std::vector<at::Tensor>& blocks = inputs.at(0);
    const at::Tensor& output = outputs.at(0);
    std::vector<int64_t> bytes;
    int64_t elements = 0;
    for (const at::Tensor& block : blocks) {
      bytes.push_back(static_cast<int64_t>(block.nbytes()));
      elements += block.numel();
    }
    const at::Tensor all = blocks.front().as_strided({elements}, {1}).view(at::kByte);
    return run({"reduce_scatter", all, bytes}, output.device(), [&] {
      std::vector<int64_t> begins;
      begins.reserve(blocks.size());
      for (int peer = 0; peer < size_; ++peer) begins.push_back(begin_of_bytes_from(peer, bytes[rank_]));
      const auto read = [&](int peer, int64_t begin, const at::Tensor& to) {
        board_->copy_from(peer, begins[peer] + begin * to.element_size(), to.view(at::kByte));
      };
      reduce_readable({size_, rank_, blocks[rank_].view({-1}), read}, options.reduceOp, output.view({-1}));
    });
  }

  // outputs[0][p] has as many bytes as rank p's input; it may be this rank's input itself.
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& /*options*/) override {
    const at::Tensor& input = inputs.at(0);
    const std::array<int64_t, 1> bytes = {input.size(0)};
    return run({"allgather", input, bytes}, input.device(), [&] {
      for (int peer = 0; peer < size_; ++peer) {
        const at::Tensor& part = outputs.at(0).at(peer);
        demand_bytes_of(peer, part.size(0));
        board_->copy_from(peer, 0, part);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const int root = static_cast<int>(options.rootRank);
    at::Tensor& tensor = tensors.at(0);
    const std::array<int64_t, 1> bytes = {tensor.size(0)};
    return run({cat("broadcast from ", root), tensor, bytes}, tensor.device(), [&] {
      if (rank_ == root) return;
      demand_bytes_of(root, tensor.size(0));
      board_->copy_from(root, 0, tensor);
    });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return run({"barrier", at::empty({0}, at::kByte), {}}, at::kCPU, [] {});
  }

 private:
  // Where in the other rank's bytes those for this rank begin.
  int64_t begin_of_bytes_from(int peer, int64_t expected) const {
    const std::span<const int64_t> sends = board_->send_bytes(peer);
    if (sends[rank_] != expected)
      throw std::runtime_error(cat("the group's rank ", peer, " sends ", sends[rank_], " bytes to rank ",
                                   rank_, ", which expects ", expected));
    return std::accumulate(sends.begin(), sends.begin() + rank_, int64_t{0});
  }
  // A rank that gives all its bytes to every other posts their number.
  void demand_bytes_of(int peer, int64_t expected) const {
    if (board_->send_bytes(peer)[0] != expected)
      throw std::runtime_error(cat("the group's rank ", peer, " gives ", board_->send_bytes(peer)[0],
                                   " bytes, rank ", rank_, " expects ", expected));
  }

  c10::intrusive_ptr<c10d::Work> run(const PostBoard::Post& post, at::Device output_device,
                                     const std::function<void()>& copy) {
    // Other ranks' streams do not wait for this rank's stream, so the host waits.
    wait_for_stream(post.bytes.device());
    board_->exchange(post, timeout_, [&] {
      copy();
      wait_for_stream(output_device);
    });
    return c10::make_intrusive<FinishedWork>();
  }

  std::string name_;
  std::unique_ptr<PostBoard> board_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_post_board_backend(std::string_view name,
                                                          std::unique_ptr<PostBoard> board,
                                                          std::chrono::milliseconds timeout) {
  return c10::make_intrusive<PostBoardBackend>(std::string(name), std::move(board), timeout);
}

}  // namespace trireme
