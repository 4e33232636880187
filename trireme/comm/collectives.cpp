// How each collective is made from a backend's primitives:
//
//   all_to_all          the backend's all-to-all of bytes, so every dtype can be sent
//   all_gather          the backend's all-gather of bytes; on Gloo, or on NCCL with uneven rows, a broadcast
//                       of each rank
//   reduce_scatter_sum  all-to-all of row blocks, then a sum of the P blocks in rank order on this rank; of
//                       ranks that read each other's memory, the backend's, which sums as it reads
//   all_reduce_sum      large: reduce_scatter_sum of flat slices and all_gather; small: all_gather and a sum
//
// On NCCL, NCCL itself sums fp32, fp64 and integers: in a fixed order for a given topology and with the same
// bits on every rank, but not in rank order. This file sums 16-bit floats there too, because NCCL would round
// at each hop, and scatters uneven rows, which NCCL's reduce-scatter does not take.
#include "trireme/comm/collectives.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "trireme/base/sequence_layout.h"
#include "trireme/base/sum_of.h"
#include "trireme/comm/backend_library.h"
#include "trireme/comm/failure.h"
#include "trireme/comm/rank_order_sum.h"
#include "trireme/device/memory_account.h"

namespace trireme {
namespace {

// Below this size a sum over ranks takes one round, a gather of everything, instead of two.
constexpr int64_t kGatherBelow_bytes = 16 * 1024;

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

// One collective as the caller sees it: counts time and bytes under one name, whichever primitives implement
// it.
class Collective {
 public:
  // `device` is where its tensors lie.
  Collective(Group& group, std::string name, at::Device device)
      : group_(group), name_(std::move(name)), watch_(device) {}

  const Group& group() const { return group_; }
  c10d::Backend& backend() const { return group_.backend(); }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool native_sum(at::ScalarType dtype) const {
    return library_of(backend()) == BackendLibrary::nccl && dtype != at::kHalf && dtype != at::kBFloat16;
  }
  // Of a call of the backend.
  template <typename Options>
  Options options() const {
    Options options;
    options.timeout = group_.timeout();
    return options;
  }
  void sent(int64_t bytes) { sent_bytes_ += bytes; }

  // Starts the works and waits for them; failures become CommError.
  template <typename Start>
  void run(Start&& start) {
    guarded([&] {
      for (const c10::intrusive_ptr<c10d::Work>& work : start()) work->wait();
    });
  }
  template <typename Body>
  void guarded(Body&& body) {
    const FailureContext context{cat(name_, " of group '", group_.name(), "'"),
                                 group_.world_ranks()[group_.rank()], group_.world_ranks(), group_.timeout(),
                                 &group_.activity()};
    const ActivityWait wait(group_.activity(), name_, group_.name());
    rethrow_as_comm_error(context, body);
  }

  // The time between pause() and resume() is not counted.
  void pause() { watch_.pause(); }
  void resume() { watch_.resume(); }
  void finish() {
    pause();
    group_.count(name_, sent_bytes_, watch_.take());
  }

 private:
  Group& group_;
  std::string name_;
  CallWatch watch_;
  int64_t sent_bytes_ = 0;
};

// The memory of a contiguous tensor as one row of bytes.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

int64_t row_bytes(const at::Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t dim = 1; dim < tensor.dim(); ++dim) elements *= tensor.size(dim);
  return elements * static_cast<int64_t>(tensor.element_size());
}

at::Tensor with_rows(const at::Tensor& like, int64_t rows,
                     std::optional<at::ScalarType> dtype = std::nullopt) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.at(0) = rows;
  return at::empty(shape, like.options().dtype(dtype.value_or(like.scalar_type())).requires_grad(false));
}

void check_tensor(const Group& group, const char* collective, const at::Tensor& tensor) {
  TRIREME_ASSERT(tensor.defined() && tensor.is_contiguous(), collective, " of group '", group.name(),
                 "' takes a contiguous tensor");
}

void check_rows(const Group& group, const char* collective, std::span<const int64_t> rows, const char* what) {
  TRIREME_ASSERT(static_cast<int>(rows.size()) == group.size(), collective, " of group '", group.name(),
                 "': ", rows.size(), " ", what, " for ", group.size(), " ranks");
  for (const int64_t count : rows) TRIREME_ASSERT(count >= 0, collective, ": negative ", what, ": ", count);
}

// Starts to exchange row blocks with every rank. `output` has sum(receive_rows) rows.
Works start_trade(Collective& collective, const at::Tensor& input, std::span<const int64_t> send_rows,
                  const at::Tensor& output, std::span<const int64_t> receive_rows) {
  const int64_t bytes = row_bytes(input);
  if (bytes == 0) return {};
  std::vector<int64_t> send_bytes(send_rows.begin(), send_rows.end());
  std::vector<int64_t> receive_bytes(receive_rows.begin(), receive_rows.end());
  for (int64_t& count : send_bytes) count *= bytes;
  for (int64_t& count : receive_bytes) count *= bytes;
  at::Tensor from = as_bytes(input), to = as_bytes(output);
  collective.sent(
      sum_of(send_bytes) -
      send_bytes[collective.rank()]);  // before the backend's call, which may move the splits away
  return {collective.backend().alltoall_base(to, from, receive_bytes, send_bytes,
                                             collective.options<c10d::AllToAllOptions>())};
}

// Starts to gather every rank's rows into `output`, which has sum(rows) rows.
Works start_gather(Collective& collective, const at::Tensor& input, const at::Tensor& output,
                   std::span<const int64_t> rows) {
  const int64_t bytes = row_bytes(input);
  collective.sent(rows[collective.rank()] * bytes * (collective.size() - 1));
  if (bytes == 0 || sum_of(rows) == 0) return {};
  at::Tensor from = as_bytes(input), to = as_bytes(output);
  std::vector<std::vector<at::Tensor>> parts(1);
  int64_t offset = 0;
  for (const int64_t count : rows) {
    parts[0].push_back(to.narrow(0, offset, count * bytes));
    offset += count * bytes;
  }
  const BackendLibrary library = library_of(collective.backend());
  const auto options = collective.options<c10d::AllgatherOptions>();
  if (library == BackendLibrary::post_board) {
    std::vector<at::Tensor> inputs{from};
    return {collective.backend().allgather(parts, inputs, options)};
  }
  const bool even = std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count == rows[0]; });
  // Gloo's all-gather goes through a second buffer as large as the output; its broadcasts do not.
  if (even && library != BackendLibrary::gloo)
    return {collective.backend()._allgather_base(to, from, options)};
  Works works;
  for (int root = 0; root < collective.size(); ++root) {
    std::vector<at::Tensor> part{parts[0][root]};
    if (part[0].size(0) == 0) continue;
    if (root == collective.rank()) part[0].copy_(from);  // of itself: nothing
    auto of_broadcast = collective.options<c10d::BroadcastOptions>();
    of_broadcast.rootRank = root;
    works.push_back(collective.backend().broadcast(part, of_broadcast));
  }
  return works;
}

// Sums over ranks that read each other's memory: [sum(rows), ...] -> `output` [rows[rank], ...], which may be
// this rank's rows of `input`.
Works sum_while_reading(Collective& collective, const at::Tensor& input, std::span<const int64_t> rows,
                        Reduction reduction, const at::Tensor& output) {
  if (input.numel() == 0) return {};
  std::vector<std::vector<at::Tensor>> blocks{input.split_with_sizes(std::vector(rows.begin(), rows.end()))};
  std::vector<at::Tensor> outputs{output};
  auto options = collective.options<c10d::ReduceScatterOptions>();
  options.reduceOp = reduction;
  collective.sent((input.size(0) - output.size(0)) * row_bytes(input));
  return {collective.backend().reduce_scatter(outputs, blocks, options)};
}

// Starts to bring every rank's block of this rank's rows: [P x rows[rank], ...].
void start_blocks(Collective& collective, const at::Tensor& input, std::span<const int64_t> rows,
                  at::Tensor& blocks, Works& works) {
  const int64_t rank_rows = rows[static_cast<size_t>(collective.rank())];
  const std::vector<int64_t> receive(static_cast<size_t>(collective.size()), rank_rows);
  const MemoryScope buffers(MemoryCategory::communication);
  blocks = with_rows(input, rank_rows * collective.size());
  collective.guarded([&] { works = start_trade(collective, input, rows, blocks, receive); });
}

// The sum of those blocks, [rank_rows, ...].
at::Tensor sum_of_blocks(const at::Tensor& blocks, const at::Tensor& input, int64_t rank_rows, int ranks,
                         Reduction reduction, at::ScalarType result) {
  std::vector<int64_t> shape = input.sizes().vec();
  shape[0] = rank_rows;
  return reduce_blocks(blocks.view({ranks, blocks.numel() / ranks}), reduction, result).view(shape);
}

// This rank's share of a flat tensor, reduced; in place where ranks read each other's memory.
at::Tensor reduce_share(Collective& collective, const at::Tensor& flat, std::span<const int64_t> shares,
                        Reduction reduction) {
  const auto rank = static_cast<size_t>(collective.rank());
  if (ranks_read_each_other(collective.backend())) {
    at::Tensor share = flat.split_with_sizes(std::vector(shares.begin(), shares.end()))[rank];
    collective.run([&] { return sum_while_reading(collective, flat, shares, reduction, share); });
    return share;
  }
  at::Tensor blocks;
  Works works;
  start_blocks(collective, flat, shares, blocks, works);
  collective.run([&] { return works; });
  return sum_of_blocks(blocks, flat, shares[rank], collective.size(), reduction, flat.scalar_type());
}

// Reduces a flat tensor over ranks, in place, in two rounds or one.
void all_reduce_flat(Collective& collective, at::Tensor& flat, Reduction reduction) {
  const at::ScalarType dtype = flat.scalar_type();
  const int64_t elements = flat.numel();
  if (elements * static_cast<int64_t>(flat.element_size()) < kGatherBelow_bytes) {
    const std::vector<int64_t> all(collective.size(), elements);
    const at::Tensor blocks = with_rows(flat, elements * collective.size());
    collective.run([&] { return start_gather(collective, flat, blocks, all); });
    flat.copy_(reduce_blocks(blocks.view({collective.size(), elements}), reduction, dtype));
    return;
  }
  const std::vector<int64_t> shares = SequenceLayout{elements, collective.size()}.sizes();
  const at::Tensor share = reduce_share(collective, flat, shares, reduction);
  collective.run([&] { return start_gather(collective, share, flat, shares); });
}

void all_reduce(Group& group, const char* name, at::Tensor& tensor, Reduction reduction) {
  check_tensor(group, name, tensor);
  if (group.is_alone() || tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const MemoryScope buffers(MemoryCategory::communication);
  Collective collective(group, name, tensor.device());
  at::Tensor flat = tensor.view({-1});
  if (collective.native_sum(flat.scalar_type())) {
    std::vector<at::Tensor> tensors{flat};
    auto options = collective.options<c10d::AllreduceOptions>();
    options.reduceOp = reduction;
    collective.run([&] { return Works{collective.backend().allreduce(tensors, options)}; });
    // The elements that the two rounds would send: all but this rank's slice, then this rank's slice to the
    // others.
    const int64_t rank_rows = SequenceLayout{flat.numel(), collective.size()}.size(collective.rank());
    collective.sent((flat.numel() + rank_rows * (collective.size() - 2)) *
                    static_cast<int64_t>(flat.element_size()));
  } else {
    all_reduce_flat(collective, flat, reduction);
  }
  collective.finish();
}

}  // namespace

struct PendingRows::State {
  Collective collective;
  at::Tensor input, output;
  Works works;
  std::function<at::Tensor(const at::Tensor&)> complete = {};  // of what was received, the result
  at::Tensor into = {};  // where the caller wants the result, if anywhere

  // The input is the output until there is another.
  static std::unique_ptr<State> begin(Group& group, const char* collective, const at::Tensor& input) {
    return std::unique_ptr<State>(new State{Collective(group, collective, input.device()), input, input, {}});
  }
};

PendingRows::PendingRows(std::unique_ptr<State> state) : state_(std::move(state)) {}
PendingRows::PendingRows(PendingRows&&) noexcept = default;

PendingRows::~PendingRows() {
  if (!state_) return;
  // The peers may wait for this rank, so it reports its error now, not after the group's timeout. The works
  // keep their tensors alive.
  if (std::uncaught_exceptions() > 0 && !state_->collective.group().is_alone() &&
      library_of(state_->collective.backend()) == BackendLibrary::gloo)
    return;
  try {
    wait();
  } catch (const std::exception&) {
    // The error that made the caller drop this object is reported instead.
  }
}

at::Tensor PendingRows::wait() {
  TRIREME_ASSERT(state_ != nullptr, "a collective was waited for twice");
  const std::unique_ptr<State> state = std::move(state_);
  const auto result = [&] {
    return state->into.defined() ? state->into.copy_(state->output) : state->output;  // of itself: nothing
  };
  if (state->collective.group().is_alone()) return result();
  state->collective.resume();
  state->collective.run([&] { return state->works; });
  if (state->complete) state->output = state->complete(state->output);
  state->collective.finish();
  return result();
}

PendingRows begin_all_gather(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                             at::Tensor output) {
  check_tensor(group, "all_gather", input);
  check_rows(group, "all_gather", rows, "rows");
  TRIREME_ASSERT(input.dim() > 0 && input.size(0) == rows[group.rank()], "all_gather of group '",
                 group.name(), "': input of shape ", input.sizes(), ", rows[rank] is ", rows[group.rank()]);
  const at::NoGradGuard no_grad;
  auto state = PendingRows::State::begin(group, "all_gather", input);
  if (group.is_alone()) return PendingRows(std::move(state));
  state->output = output.defined() ? std::move(output) : with_rows(input, sum_of(rows));
  state->collective.guarded(
      [&] { state->works = start_gather(state->collective, input, state->output, rows); });
  state->collective.pause();
  return PendingRows(std::move(state));
}

PendingRows begin_all_to_all(Group& group, const at::Tensor& input, std::span<const int64_t> send_rows,
                             std::span<const int64_t> receive_rows) {
  check_tensor(group, "all_to_all", input);
  check_rows(group, "all_to_all", send_rows, "send_rows");
  check_rows(group, "all_to_all", receive_rows, "receive_rows");
  TRIREME_ASSERT(input.dim() > 0 && input.size(0) == sum_of(send_rows), "all_to_all of group '", group.name(),
                 "': input of shape ", input.sizes(), ", send_rows sum to ", sum_of(send_rows));
  TRIREME_ASSERT(send_rows[group.rank()] == receive_rows[group.rank()],
                 "all_to_all: ", send_rows[group.rank()], " rows to itself, ", receive_rows[group.rank()],
                 " from itself");
  const at::NoGradGuard no_grad;
  auto state = PendingRows::State::begin(group, "all_to_all", input);
  if (group.is_alone()) return PendingRows(std::move(state));
  state->output = with_rows(input, sum_of(receive_rows));
  state->collective.guarded(
      [&] { state->works = start_trade(state->collective, input, send_rows, state->output, receive_rows); });
  state->collective.pause();
  return PendingRows(std::move(state));
}

PendingRows begin_pass_on(Group& group, const at::Tensor& input, int64_t send_rows, int64_t receive_rows) {
  const int ranks = group.size(), next = (group.rank() + 1) % ranks,
            before = (group.rank() + ranks - 1) % ranks;
  std::vector<int64_t> send(static_cast<size_t>(ranks), 0), receive(send);
  send[static_cast<size_t>(next)] = send_rows;
  receive[static_cast<size_t>(before)] = receive_rows;
  return begin_all_to_all(group, input, send, receive);
}

at::Tensor all_gather(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                      at::Tensor output) {
  return begin_all_gather(group, input, rows, std::move(output)).wait();
}

at::Tensor all_to_all(Group& group, const at::Tensor& input, std::span<const int64_t> send_rows,
                      std::span<const int64_t> receive_rows) {
  return begin_all_to_all(group, input, send_rows, receive_rows).wait();
}

PendingRows begin_reduce_scatter_sum(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                                     std::optional<at::ScalarType> result, at::Tensor output) {
  check_tensor(group, "reduce_scatter_sum", input);
  check_rows(group, "reduce_scatter_sum", rows, "rows");
  TRIREME_ASSERT(input.dim() > 0 && input.size(0) == sum_of(rows), "reduce_scatter_sum of group '",
                 group.name(), "': input of shape ", input.sizes(), ", rows sum to ", sum_of(rows));
  const at::ScalarType dtype = result.value_or(input.scalar_type());
  if (output.defined()) {
    check_tensor(group, "reduce_scatter_sum into", output);
    TRIREME_ASSERT(output.scalar_type() == dtype && output.size(0) == rows[group.rank()] &&
                       row_bytes(output) / output.element_size() == row_bytes(input) / input.element_size(),
                   "reduce_scatter_sum of group '", group.name(), "' into ", output.sizes(), " of ",
                   output.scalar_type(), ": input of shape ", input.sizes(), ", result of ", dtype);
  }
  const at::NoGradGuard no_grad;
  auto state = PendingRows::State::begin(group, "reduce_scatter_sum", input);
  state->into = std::move(output);
  if (group.is_alone()) {
    state->output = input.to(dtype);
    return PendingRows(std::move(state));
  }
  Collective& collective = state->collective;
  const bool even = std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count == rows[0]; });
  const int64_t rank_rows = rows[static_cast<size_t>(collective.rank())];
  if (even && collective.native_sum(input.scalar_type()) && input.numel() > 0) {
    const bool as_wanted = state->into.defined() && dtype == input.scalar_type();
    state->output = as_wanted ? state->into : with_rows(input, rank_rows);
    collective.guarded([&] {
      state->works = {collective.backend()._reduce_scatter_base(
          state->output, state->input, collective.options<c10d::ReduceScatterOptions>())};
    });
    collective.sent((input.size(0) - rank_rows) * row_bytes(input));
    state->complete = [dtype](const at::Tensor& sum) { return sum.to(dtype); };
  } else if (ranks_read_each_other(collective.backend())) {
    state->output = state->into.defined() ? state->into : with_rows(input, rank_rows, dtype);
    collective.guarded([&] {
      state->works = sum_while_reading(collective, input, rows, c10d::ReduceOp::SUM, state->output);
    });
  } else {
    start_blocks(collective, input, rows, state->output, state->works);
    state->complete = [&input = state->input, rank_rows, ranks = collective.size(),
                       dtype](const at::Tensor& blocks) {
      return sum_of_blocks(blocks, input, rank_rows, ranks, c10d::ReduceOp::SUM, dtype);
    };
  }
  collective.pause();
  return PendingRows(std::move(state));
}

at::Tensor reduce_scatter_sum(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                              std::optional<at::ScalarType> result) {
  return begin_reduce_scatter_sum(group, input, rows, result).wait();
}

void all_reduce_sum(Group& group, at::Tensor& tensor) {
  all_reduce(group, "all_reduce_sum", tensor, c10d::ReduceOp::SUM);
}

void all_reduce_max(Group& group, at::Tensor& tensor) {
  all_reduce(group, "all_reduce_max", tensor, c10d::ReduceOp::MAX);
}

void broadcast(Group& group, at::Tensor& tensor, int root) {
  check_tensor(group, "broadcast", tensor);
  TRIREME_ASSERT(root >= 0 && root < group.size(), "broadcast: root ", root, " of ", group.size());
  if (group.is_alone() || tensor.numel() == 0) return;
  const at::NoGradGuard no_grad;
  Collective collective(group, "broadcast", tensor.device());
  std::vector<at::Tensor> tensors{as_bytes(tensor)};
  auto options = collective.options<c10d::BroadcastOptions>();
  options.rootRank = root;
  collective.run([&] { return Works{collective.backend().broadcast(tensors, options)}; });
  if (collective.rank() == root) collective.sent(tensors[0].numel() * (collective.size() - 1));
  collective.finish();
}

void barrier(Group& group) {
  if (group.is_alone()) return;
  Collective collective(group, "barrier", at::kCPU);  // the host waits for it, on any backend
  collective.run(
      [&] { return Works{collective.backend().barrier(collective.options<c10d::BarrierOptions>())}; });
  collective.finish();
}

}  // namespace trireme
