#include "trireme/comm/absent_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/sequence_layout.h"
#include "trireme/comm/finished_work.h"
#include "trireme/comm/rank_order_sum.h"

namespace trireme {
namespace {

// Fills `to` with `from`, as often as it goes in; both are rows of bytes.
void fill_with(const at::Tensor& to, const at::Tensor& from) {
  const int64_t bytes = to.size(0), piece = from.size(0);
  if (piece == 0) to.zero_();
  for (int64_t begin = 0; piece > 0 && begin < bytes; begin += piece) {
    const int64_t part = std::min(piece, bytes - begin);
    to.narrow(0, begin, part).copy_(from.narrow(0, 0, part));
  }
}

// Rows of bytes inside a storage that may be freed meanwhile.
class StoredBytes {
 public:
  StoredBytes() = default;
  explicit StoredBytes(const at::Tensor& bytes)
      : storage_(bytes.storage().getWeakStorageImpl()),
        begin_(bytes.storage_offset()),
        bytes_(bytes.size(0)) {}

  // Empty unless they lie in the storage of `other`.
  at::Tensor beside(const at::Tensor& other) const {
    const auto known = storage_ ? storage_->lock() : c10::intrusive_ptr<c10::StorageImpl>();
    if (!known || known.get() != other.storage().unsafeGetStorageImpl()) return other.narrow(0, 0, 0);
    return other.as_strided({bytes_}, {1}, begin_);
  }

 private:
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage_;
  int64_t begin_ = 0, bytes_ = 0;
};

class AbsentRanksBackend : public c10d::Backend {
 public:
  AbsentRanksBackend(std::shared_ptr<StandIns> stand_ins, int ranks, BackendLibrary library)
      : Backend(/*rank=*/0, ranks), stand_ins_(std::move(stand_ins)), library_(library) {}

  // Collectives are made of a library's primitives by its name. Of Gloo's detours, which are not in the bytes
  // that are sent, there are none here.
  const std::string getBackendName() const override {
    if (library_ == BackendLibrary::nccl) return std::string(kNcclBackend);
    return library_ == BackendLibrary::post_board ? std::string(kMemoryBackend) : "absent ranks";
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_sizes,
                                               std::vector<int64_t>& input_sizes,
                                               const c10d::AllToAllOptions& /*options*/) override {
    return answer(output.device(), output.size(0) - output_sizes.at(0), [&] {
      if (output_sizes == input_sizes) {
        output.copy_(input);
        return;
      }
      int64_t to = 0, from = 0;
      for (size_t peer = 0; peer < output_sizes.size(); ++peer) {
        const at::Tensor sent = input.narrow(0, from, input_sizes[peer]);
        fill_with(output.narrow(0, to, output_sizes[peer]), sent.size(0) > 0 ? sent : input);
        to += output_sizes[peer];
        from += input_sizes[peer];
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    return answer(output.device(), output.size(0) - input.size(0), [&] {
      for (at::Tensor& part : output.chunk(size_)) part.copy_(input);
    });
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& /*options*/) override {
    int64_t bytes = -inputs.at(0).size(0);
    for (const at::Tensor& part : outputs.at(0)) bytes += part.size(0);
    return answer(inputs[0].device(), bytes, [&] {
      for (const at::Tensor& part : outputs[0]) fill_with(part, inputs[0]);
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    const at::Tensor& bytes = tensors.at(0);
    if (options.rootRank != rank_) {
      return answer(bytes.device(), bytes.size(0), [&] { fill_with(bytes, sent_.beside(bytes)); });
    }
    sent_ = StoredBytes(bytes);
    return answer(bytes.device(), 0, [] {});
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override {
    const at::Tensor own = inputs.at(0).at(rank_).view({-1}), output = outputs.at(0).view({-1});
    const auto read = [&](int /*peer*/, int64_t begin, const at::Tensor& to) {
      to.copy_(own.narrow(0, begin, to.size(0)));
    };
    return answer(output.device(), static_cast<int64_t>(own.nbytes()) * (size_ - 1), [&] {
      reduce_readable({size_, rank_, own, read}, options.reduceOp, output);
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& /*options*/) override {
    at::Tensor flat = output.view({-1});
    return answer(output.device(), static_cast<int64_t>(output.nbytes()) * (size_ - 1), [&] {
      at::sum_out(flat, input.view({size_, flat.numel()}), 0);
    });
  }

  // In two rounds, as collectives.cpp counts it: reduce-scatter, then all-gather.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    at::Tensor& tensor = tensors.at(0);
    const int64_t elements = tensor.numel(), own = SequenceLayout{elements, size_}.size(rank_);
    return answer(tensor.device(),
                  (own * (size_ - 2) + elements) * static_cast<int64_t>(tensor.element_size()), [&] {
                    if (options.reduceOp == c10d::ReduceOp::SUM) tensor.mul_(size_);
                  });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return c10::make_intrusive<FinishedWork>();
  }

 private:
  template <typename Copies>
  c10::intrusive_ptr<c10d::Work> answer(at::Device device, int64_t received_bytes, const Copies& copies) {
    CallWatch watch(device);
    copies();
    watch.pause();
    stand_ins_->received_bytes += received_bytes;
    stand_ins_->seconds.add(watch.take());
    return c10::make_intrusive<FinishedWork>();
  }

  std::shared_ptr<StandIns> stand_ins_;
  BackendLibrary library_;
  StoredBytes sent_;  // the last that this rank broadcast
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_absent_ranks_backend(std::shared_ptr<StandIns> stand_ins, int ranks,
                                                            BackendLibrary library) {
  TRIREME_ASSERT(ranks >= 2, "got ", ranks);
  TRIREME_ASSERT(library != BackendLibrary::other, "absent ranks of a library that is not known");
  return c10::make_intrusive<AbsentRanksBackend>(std::move(stand_ins), ranks, library);
}

}  // namespace trireme
