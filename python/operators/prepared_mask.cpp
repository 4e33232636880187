#include "python/operators/prepared_mask.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "trireme/base/error.h"

namespace trireme {
namespace {

// Newest first.
struct KeptMasks {
  std::mutex mutex;
  std::list<PreparedMask> list;
};

// Never destroyed: at the process's end there may be no GPU to give memory back to.
KeptMasks& kept_masks() {
  static auto* const kept = new KeptMasks;
  return *kept;
}

PreparedMask prepare(MaskArguments arguments) {
  const SampleLayout& layout = arguments.layout;
  for (const Documents& of_sample : arguments.documents)
    if (of_sample.tokens() != layout.tokens)
      throw ConfigError(cat("cu_seqlens: got documents of ", of_sample.tokens(), " tokens in a sample of ",
                            layout.tokens, ", expected to end with the tokens of all ranks"));
  SequenceMask mask =
      make_sequence_mask(arguments.mask, arguments.documents, layout, arguments.ring_index, RingMethod::ring);
  return {std::move(arguments), std::move(mask), nullptr};
}

PreparedMask take_or_prepare(MaskArguments arguments) {
  {
    KeptMasks& kept = kept_masks();
    const std::lock_guard lock(kept.mutex);
    const auto found = std::ranges::find(kept.list, arguments, &PreparedMask::arguments);
    if (found != kept.list.end()) {
      PreparedMask taken = std::move(*found);
      kept.list.erase(found);
      return taken;
    }
  }
  return prepare(std::move(arguments));
}

}  // namespace

c10::StreamId stream_of(at::Device device) {
  return device.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

BorrowedMask::BorrowedMask(MaskArguments arguments) : prepared_(take_or_prepare(std::move(arguments))) {
  const MaskArguments& known = prepared_.arguments;
  if (prepared_.local == nullptr)
    prepared_.local = make_local_attention(AttentionKernel::automatic, known.device, known.dtype,
                                           SampleLengths::any, known.scores);
}

BorrowedMask::~BorrowedMask() {
  if (prepared_.arguments.device.is_cpu()) prepared_.local.reset();
  std::list<PreparedMask> gone;
  KeptMasks& kept = kept_masks();
  const std::lock_guard lock(kept.mutex);
  kept.list.push_front(std::move(prepared_));
  if (kept.list.size() > kMostPreparedMasks) gone.splice(gone.begin(), kept.list, std::prev(kept.list.end()));
}

}  // namespace trireme
