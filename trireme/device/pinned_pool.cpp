#include "trireme/device/pinned_pool.h"

#include <algorithm>
#include <exception>
#include <list>
#include <mutex>
#include <unistd.h>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/round_up.h"
#include "trireme/device/memory_account.h"
#include "trireme/device/out_of_memory.h"
#include "trireme/device/tensor_memory.h"

namespace trireme {
namespace {

int64_t page_bytes() {
  return sysconf(_SC_PAGESIZE);
}

// Whole pages that stay pinned while the block lives.
class PinnedBlock {
 public:
  PinnedBlock(std::shared_ptr<const HostPinning> pinning, int64_t bytes)
      : pinning_(std::move(pinning)), bytes_(bytes) {
    const int64_t page = page_bytes();
    try {
      memory_ = at::empty({bytes + page}, at::TensorOptions(at::kCPU).dtype(at::kByte));
    } catch (const c10::Error& error) {  // from an allocator other than ours
      throw_out_of_memory("host", MemorySpace::host, bytes, 0, error.what_without_backtrace());
    }
    auto* const begin = memory_.mutable_data_ptr<uint8_t>();
    data_ = begin + (page - reinterpret_cast<intptr_t>(begin) % page) % page;
    const std::string refusal = pinning_->pin(data_, bytes);
    if (refusal.empty()) return;
    memory_ = at::Tensor();  // the message must not count this block
    throw_out_of_memory("pinned host", MemorySpace::host, bytes, 0, refusal);
  }
  ~PinnedBlock() {
    try {
      wait();
    } catch (const std::exception&) {
      // A lost device no longer copies.
    }
    pinning_->unpin(data_);
  }
  PinnedBlock& operator=(PinnedBlock&&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  void in_use_until(std::shared_ptr<const StreamMark> mark) {
    std::erase_if(marks_, [](const auto& earlier) { return earlier->reached(); });
    marks_.push_back(std::move(mark));
  }
  bool in_use() const {
    return std::any_of(marks_.begin(), marks_.end(), [](const auto& mark) { return !mark->reached(); });
  }
  void wait() {
    for (const auto& mark : marks_) mark->wait();
    marks_.clear();
  }
  void count_here() const { count_as(memory_, MemoryScope::current().category); }

 private:
  std::shared_ptr<const HostPinning> pinning_;
  int64_t bytes_;
  at::Tensor memory_;  // `bytes_` and a page more; `data_` is its first whole page
  void* data_ = nullptr;
  std::vector<std::shared_ptr<const StreamMark>> marks_;
};

// A list: its elements move to another list without an allocation, so giving a block back cannot fail.
using BlockList = std::list<std::unique_ptr<PinnedBlock>>;

}  // namespace

class PinnedPool::Blocks {
 public:
  // Owned by a tensor of take().
  struct Lease {
    std::shared_ptr<Blocks> blocks;
    BlockList block;  // one
  };
  static void give_back(void* lease) {
    const std::unique_ptr<Lease> ended(static_cast<Lease*>(lease));
    ended->blocks->keep(ended->block);
  }

  explicit Blocks(HostPinning pinning) : pinning_(std::make_shared<const HostPinning>(std::move(pinning))) {}

  // Returns a list of one block.
  BlockList take(int64_t bytes) {
    BlockList taken, given_up;
    {
      const std::lock_guard lock(mutex_);
      taken = take_kept(bytes);
      in_use_bytes_ += bytes;
      given_up = give_up(in_use_bytes_ + kept_bytes_ - std::max(most_in_use_bytes_, in_use_bytes_));
    }
    try {
      given_up.clear();  // without the lock: it may wait for a copy
      if (taken.empty()) taken = pin(bytes);
      taken.front()->wait();
      taken.front()->count_here();
      const std::lock_guard lock(mutex_);
      most_in_use_bytes_ = std::max(most_in_use_bytes_, in_use_bytes_);
      return taken;
    } catch (...) {
      const std::lock_guard lock(mutex_);
      in_use_bytes_ -= bytes;
      throw;
    }
  }

  int64_t pinned_bytes() const {
    const std::lock_guard lock(mutex_);
    return in_use_bytes_ + kept_bytes_;
  }

 private:
  void keep(BlockList& block) {
    const std::lock_guard lock(mutex_);
    in_use_bytes_ -= block.front()->bytes();
    kept_bytes_ += block.front()->bytes();
    kept_.splice(kept_.end(), block);
  }

  // Takes a kept block of this size, preferably one that no copy uses; empty if there is none. Needs the
  // lock.
  BlockList take_kept(int64_t bytes) {
    const auto fits = [&](const auto& block) { return block->bytes() == bytes; };
    auto found = std::find_if(kept_.begin(), kept_.end(),
                              [&](const auto& block) { return fits(block) && !block->in_use(); });
    if (found == kept_.end()) found = std::find_if(kept_.begin(), kept_.end(), fits);
    BlockList taken;
    if (found == kept_.end()) return taken;
    kept_bytes_ -= bytes;
    taken.splice(taken.end(), kept_, found);
    return taken;
  }

  // Takes kept blocks of `bytes` or more, or all; their destructors unpin them. Needs the lock.
  BlockList give_up(int64_t bytes) {
    BlockList gone;
    while (bytes > 0 && !kept_.empty()) {
      bytes -= kept_.front()->bytes();
      kept_bytes_ -= kept_.front()->bytes();
      gone.splice(gone.end(), kept_, kept_.begin());
    }
    return gone;
  }

  BlockList give_up_all() {
    const std::lock_guard lock(mutex_);
    return give_up(kept_bytes_);
  }

  BlockList pin(int64_t bytes) {
    BlockList block;
    try {
      block.push_back(std::make_unique<PinnedBlock>(pinning_, bytes));
      return block;
    } catch (const ConfigError&) {
      if (give_up_all().empty()) throw;
    }
    block.push_back(std::make_unique<PinnedBlock>(pinning_, bytes));
    return block;
  }

  std::shared_ptr<const HostPinning> pinning_;
  mutable std::mutex mutex_;
  BlockList kept_;  // the block unused for longest comes first
  int64_t kept_bytes_ = 0;
  int64_t in_use_bytes_ = 0;
  int64_t most_in_use_bytes_ = 0;
};

PinnedPool::PinnedPool(HostPinning pinning) : blocks_(std::make_shared<Blocks>(std::move(pinning))) {}

at::Tensor PinnedPool::take(int64_t elements, at::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCPU).dtype(dtype);
  if (elements == 0) return at::empty({0}, options);
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  auto lease =
      std::make_unique<Blocks::Lease>(Blocks::Lease{blocks_, blocks_->take(round_up(bytes, page_bytes()))});
  void* const data = lease->block.front()->data();
  return at::for_blob(data, {elements})
      .context(lease.release(), &Blocks::give_back)
      .options(options)
      .target_device(at::kCPU)
      .make_tensor();
}

void PinnedPool::in_use_until(const at::Tensor& tensor, std::shared_ptr<const StreamMark> mark) {
  if (mark == nullptr || tensor.numel() == 0) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  TRIREME_ASSERT(data.get_deleter() == &Blocks::give_back, "this memory is of no pinned pool");
  static_cast<Blocks::Lease*>(data.get_context())->block.front()->in_use_until(std::move(mark));
}

int64_t PinnedPool::pinned_bytes() const {
  return blocks_->pinned_bytes();
}

}  // namespace trireme
