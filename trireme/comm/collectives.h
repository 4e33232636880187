// The collectives that the whole program uses, each with its adjoint: the linear map that backward applies to
// gradients, proved in tests by <A x, y> = <x, A' y>.
//
//   collective           forward                                    adjoint
//   all_to_all           row blocks traded between all ranks        all_to_all with the two splits swapped
//   all_gather           everyone's rows, concatenated              reduce_scatter_sum
//   reduce_scatter_sum   sum over ranks, each keeps its rows        all_gather
//   all_reduce_sum       sum over ranks, everyone has it            all_reduce_sum
//
// All are collective: every rank of the group calls them in the same order with agreeing splits. They work
// along dim 0 of contiguous tensors of any dtype and device that the backend knows; splits may be uneven and
// zero. Sums run in rank order, and 16-bit floats are summed in fp32, so every rank gets the same bits. If a
// peer dies or does not come within the group's timeout, a CommError names the collective, this rank, the
// peers and the seconds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

// Sends rows [sum(send_rows[0..p)), ...+send_rows[p]) to rank p; returns the rows received, in rank order:
// [sum(receive_rows), ...rest of input's shape].
at::Tensor all_to_all(Group& group, const at::Tensor& input, std::span<const int64_t> send_rows,
                      std::span<const int64_t> receive_rows);

// [rows[rank], ...] -> [sum(rows), ...]
// In `output`, if it is defined: `input` may be this rank's rows of it.
at::Tensor all_gather(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                      at::Tensor output = {});

// A collective in progress. wait() returns its result and may be called once. The destructor waits and drops
// the result (an `output` may have it), but over Gloo it does not wait while an exception unwinds the stack.
// Every rank begins and waits for the same collectives in the same order.
class PendingRows {
 public:
  struct State;
  explicit PendingRows(std::unique_ptr<State> state);
  PendingRows(PendingRows&&) noexcept;
  PendingRows& operator=(PendingRows&&) = delete;
  ~PendingRows();
  at::Tensor wait();

 private:
  std::unique_ptr<State> state_;
};
// all_gather, all_to_all and reduce_scatter_sum that run while the caller computes. Neither `input` nor its
// storage may change before wait(), but by an `output` that lies in it. The "seconds" of the traffic are the
// time that begin and wait cost the caller, on a device its stream. `output`: memory for the gathered rows,
// of another stream than the current one; allocated if undefined.
PendingRows begin_all_gather(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                             at::Tensor output = {});
PendingRows begin_all_to_all(Group& group, const at::Tensor& input, std::span<const int64_t> send_rows,
                             std::span<const int64_t> receive_rows);
// begin_all_to_all in which each rank sends to the next one alone, and receives from the one before.
PendingRows begin_pass_on(Group& group, const at::Tensor& input, int64_t send_rows, int64_t receive_rows);

// [sum(rows), ...] -> [rows[rank], ...]. The result has input's dtype unless `result` names another (fp32 for
// gradients that travel in bf16). In `output`, if it is defined, a contiguous tensor of that dtype, which may
// be this rank's rows of `input`. Where neither the library nor the reading ranks sum, wait() does.
PendingRows begin_reduce_scatter_sum(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                                     std::optional<at::ScalarType> result = std::nullopt,
                                     at::Tensor output = {});
at::Tensor reduce_scatter_sum(Group& group, const at::Tensor& input, std::span<const int64_t> rows,
                              std::optional<at::ScalarType> result = std::nullopt);

// In place; every rank gets the same bits.
void all_reduce_sum(Group& group, at::Tensor& tensor);
// In place; the largest value over ranks.
void all_reduce_max(Group& group, at::Tensor& tensor);
// In place; the root's values everywhere.
void broadcast(Group& group, at::Tensor& tensor, int root);
void barrier(Group& group);

}  // namespace trireme
