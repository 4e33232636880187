#include "trireme/attention/ring_attention.h"

#include <limits>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/device/memory_account.h"

namespace trireme {

namespace {

// Two tensors of one block as one message, token-major: [n, B, 2K, D].
at::Tensor pack(const at::Tensor& first, const at::Tensor& second) {
  const MemoryScope scope(MemoryCategory::communication);
  at::Tensor packed =
      at::empty({first.size(1), first.size(0), 2 * first.size(2), first.size(3)}, first.options());
  packed.narrow(2, 0, first.size(2)).copy_(first.transpose(0, 1));
  packed.narrow(2, first.size(2), first.size(2)).copy_(second.transpose(0, 1));
  return packed;
}

// [B, n, K, D] views of a message.
struct Pair {
  at::Tensor first, second;
};
Pair unpack(const at::Tensor& packed) {
  const int64_t heads = packed.size(2) / 2;
  const at::Tensor by_sample = packed.transpose(0, 1);
  return {by_sample.narrow(2, 0, heads), by_sample.narrow(2, heads, heads)};
}

// One hop round the ring.
class Ring {
 public:
  Ring(Group& group, const SampleLayout& layout) : group_(group), layout_(layout) {
    TRIREME_ASSERT(layout.ring == group.size(), "a layout of ", layout.ring, " ring ranks in a group of ",
                   group.size());
  }
  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  // Whose block this rank holds at step t.
  int owner(int step) const { return (rank() + size() - step) % size(); }

  // Sends `message`, of `owner`'s block, on; the rank receives the block of the owner before it.
  PendingRows pass_on(const at::Tensor& message, int owner) const {
    const MemoryScope scope(MemoryCategory::communication);
    return begin_pass_on(group_, message, layout_.ring_tokens(owner),
                         layout_.ring_tokens((owner + size() - 1) % size()));
  }

 private:
  Group& group_;
  const SampleLayout& layout_;
};

void check(const Ring& ring, const at::Tensor& q, const at::Tensor& k, const SequenceSpec& spec) {
  const int64_t tokens = spec.mask.layout.ring_tokens(ring.rank());
  TRIREME_ASSERT(static_cast<int>(spec.mask.keys.size()) == ring.size(), "a mask of ", spec.mask.keys.size(),
                 " blocks of keys in a ring of ", ring.size());
  TRIREME_ASSERT(q.size(1) == tokens && k.size(1) == tokens, "q of ", q.size(1), " and k of ", k.size(1),
                 " tokens at a ring rank of ", tokens);
}

}  // namespace

std::string RingAttention::name() const {
  return cat("ring of ", ring_.size(), " over ", local_.name());
}

void merge_attention(AttentionOutput& sum, const AttentionOutput& block) {
  const double none = -std::numeric_limits<double>::infinity();
  const at::Tensor lse = at::logaddexp(sum.lse, block.lse);
  // Where nothing was seen on either side, both factors are zero.
  const at::Tensor safe = lse.masked_fill(lse.eq(none), 0);
  const auto factor = [&](const at::Tensor& of) {  // [B, H, n] -> [B, n, H, 1]
    return (of - safe).exp_().transpose(1, 2).unsqueeze(3);
  };
  sum.o.mul_(factor(sum.lse)).addcmul_(block.o, factor(block.lse));
  sum.lse = lse;
}

AttentionOutput RingAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                       const SequenceSpec& spec) {
  const at::NoGradGuard no_grad;
  const Ring ring(ring_, spec.mask.layout);
  check(ring, q, k, spec);
  AttentionOutput sum;
  at::Tensor block = pack(k, v);
  for (int step = 0; step < ring.size(); ++step) {
    const int owner = ring.owner(step);
    std::optional<PendingRows> next;
    if (step + 1 < ring.size()) next.emplace(ring.pass_on(block, owner));
    const AttentionSpec block_spec = spec.of_keys(owner, ResultDtype::fp32);
    if (step == 0) {
      sum = local_.forward(q, k, v, block_spec);
    } else if (!block_spec.keys->none()) {
      const Pair kv = unpack(block);
      merge_attention(sum, local_.forward(q, kv.first, kv.second, block_spec));
    }
    if (next) block = next->wait();
  }
  return {sum.o.to(q.scalar_type()), sum.lse};
}

AttentionGradients RingAttention::backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const AttentionOutput& saved,
                                           const SequenceSpec& spec) {
  const at::NoGradGuard no_grad;
  const Ring ring(ring_, spec.mask.layout);
  check(ring, q, k, spec);
  AttentionGradients sum;
  at::Tensor block = pack(k, v);
  std::optional<PendingRows> gradients;  // of the block at work, from the ranks that it has passed
  for (int step = 0; step < ring.size(); ++step) {
    const int owner = ring.owner(step);
    std::optional<PendingRows> next;
    if (step + 1 < ring.size()) next.emplace(ring.pass_on(block, owner));
    const AttentionSpec block_spec = spec.of_keys(owner, ResultDtype::fp32);
    const Pair kv = unpack(block);
    AttentionGradients local;
    if (step == 0 || !block_spec.keys->none())
      local = local_.backward(d_o, q, kv.first, kv.second, saved, block_spec);
    if (step == 0) {
      sum = local;
    } else {
      at::Tensor traveller;
      if (gradients) {
        traveller = gradients->wait();
        if (local.dq.defined()) {
          const Pair total = unpack(traveller);
          total.first.add_(local.dk);
          total.second.add_(local.dv);
        }
      } else if (local.dq.defined()) {
        traveller = pack(local.dk, local.dv);
      } else {
        const MemoryScope scope(MemoryCategory::communication);
        traveller = at::zeros(block.sizes(), sum.dk.options());
      }
      if (local.dq.defined()) sum.dq.add_(local.dq);
      gradients.emplace(ring.pass_on(traveller, owner));
    }
    if (next) block = next->wait();
  }
  if (gradients) {
    const at::Tensor dkv = gradients->wait();
    const Pair total = unpack(dkv);
    sum.dk.add_(total.first);
    sum.dv.add_(total.second);
  }
  if (spec.gradients == ResultDtype::fp32) return sum;
  const auto dtype = q.scalar_type();
  return {sum.dq.to(dtype), sum.dk.to(dtype), sum.dv.to(dtype)};
}

}  // namespace trireme
