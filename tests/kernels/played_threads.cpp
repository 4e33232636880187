// Threads of a block as fibers. Each runs until it ends or waits; those that wait go on when all have come.
#include "tests/kernels/played_threads.h"

#include <memory>
#include <optional>
#include <ucontext.h>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

#include "tests/kernels/played_gpu.h"

namespace trireme::played {
namespace {

constexpr size_t kStack_bytes = 128 << 10;
constexpr int kMostThreads = 1024;
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

std::string name_of(const SourceLine& line) {
  return cat(line.file, ":", line.line);
}

struct Fiber {
  enum class State { runs, waits_for_block, waits_for_warp, ended };
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStack_bytes);
  State state = State::runs;
  SourceLine line;  // where it waits
  unsigned mask = 0;
  std::optional<ShuffleKind> kind;  // none: a barrier of the warp
  int argument = 0;
  uint64_t bits = 0;
};

class Block {
 public:
  void run(const std::function<void()>& thread, int64_t block, int threads);
  void wait();  // the present fiber, whose state says for what
  void arrived_at_warp();
  Fiber& present() { return *fibers_[present_]; }
  int present_thread() const { return present_; }
  Use use() const;
  int64_t launch = 0, block = 0;

 private:
  static void enter();
  void resume(int thread);
  bool release_block();
  [[noreturn]] void refuse_stuck() const;

  std::vector<std::unique_ptr<Fiber>> fibers_;  // stacks serve every block
  int threads_ = 0, present_ = 0;
  ucontext_t scheduler_;
  const std::function<void()>* thread_ = nullptr;
  std::exception_ptr error_;
  int64_t epoch_ = 0;
  std::vector<int64_t> warp_epochs_;
};

thread_local Block block_of_now;
thread_local bool running = false;

void Block::enter() {
  Block& block = block_of_now;
  try {
    (*block.thread_)();
  } catch (...) {
    block.error_ = std::current_exception();
  }
  block.present().state = Fiber::State::ended;
  swapcontext(&block.present().context, &block.scheduler_);
}

void Block::resume(int thread) {
  present_ = thread;
  threadIdx.x = static_cast<unsigned>(thread);
  swapcontext(&scheduler_, &fibers_[thread]->context);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Block::wait() {
  Fiber& fiber = present();
  swapcontext(&fiber.context, &scheduler_);
}

void Block::run(const std::function<void()>& thread, int64_t block_index, int threads) {
  thread_ = &thread;
  block = block_index;
  threads_ = threads;
  epoch_ = 0;
  warp_epochs_.assign(static_cast<size_t>((threads + kWarp - 1) / kWarp), 0);
  while (static_cast<int>(fibers_.size()) < threads) fibers_.push_back(std::make_unique<Fiber>());
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = *fibers_[i];
    fiber.state = Fiber::State::runs;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::enter, 0);
  }
  for (;;) {
    bool progress = false, alive = false;
    for (int i = 0; i < threads; ++i) {
      if (fibers_[i]->state == Fiber::State::runs) {
        resume(i);
        progress = true;
      }
      alive = alive || fibers_[i]->state != Fiber::State::ended;
    }
    if (!alive) return;
    if (!release_block() && !progress) refuse_stuck();
  }
}

bool Block::release_block() {
  const Fiber* one = nullptr;
  for (int i = 0; i < threads_; ++i) {
    const Fiber& fiber = *fibers_[i];
    if (fiber.state != Fiber::State::waits_for_block) return false;
    if (one != nullptr && one->line.line != fiber.line.line)
      throw Refused(cat("block ", block, ": threads wait at different barriers, ", name_of(one->line),
                        " and ", name_of(fiber.line)));
    one = &fiber;
  }
  for (int i = 0; i < threads_; ++i) fibers_[i]->state = Fiber::State::runs;
  ++epoch_;
  return true;
}

void Block::refuse_stuck() const {
  int ended = 0, at_block = 0;
  std::string first;
  for (int i = 0; i < threads_; ++i) {
    const Fiber& fiber = *fibers_[i];
    ended += fiber.state == Fiber::State::ended;
    at_block += fiber.state == Fiber::State::waits_for_block;
    if (fiber.state != Fiber::State::ended && first.empty())
      first = cat("thread ", i, " waits at ", name_of(fiber.line));
  }
  throw Refused(cat("block ", block, ": ", first, ", but of ", threads_, " threads ", ended, " ended, ",
                    at_block, " wait for the block, ", threads_ - ended - at_block, " for their warp"));
}

// If all lanes of the mask have come, each gets the bits of its source and runs on.
void Block::arrived_at_warp() {
  const Fiber& mine = present();
  const int first = present_ / kWarp * kWarp, lane = present_ - first;
  if ((mine.mask >> lane & 1) == 0)
    throw Refused(cat(played::present_thread(), " (lane ", lane, ") is not in the mask ", mine.mask, " of ",
                      name_of(mine.line)));
  for (int l = 0; l < kWarp; ++l) {
    if ((mine.mask >> l & 1) == 0) continue;
    if (first + l >= threads_ || fibers_[first + l]->state == Fiber::State::ended)
      throw Refused(cat(played::present_thread(), " waits at ", name_of(mine.line), " for lane ", l,
                        ", which is not there"));
    const Fiber& other = *fibers_[first + l];
    if (other.state != Fiber::State::waits_for_warp) return;
    if (other.mask != mine.mask || other.kind != mine.kind || other.line.line != mine.line.line)
      throw Refused(cat(played::present_thread(), " waits at ", name_of(mine.line), " with mask ", mine.mask,
                        ", lane ", l, " at ", name_of(other.line), " with mask ", other.mask));
  }
  uint64_t given[kWarp] = {};
  for (int l = 0; l < kWarp; ++l)
    if (mine.mask >> l & 1) given[l] = fibers_[first + l]->bits;
  for (int l = 0; l < kWarp; ++l) {
    if ((mine.mask >> l & 1) == 0) continue;
    Fiber& other = *fibers_[first + l];
    other.state = Fiber::State::runs;
    if (!other.kind) continue;
    int source = other.argument;
    if (other.kind == ShuffleKind::exclusive_or) source = l ^ other.argument;
    if (other.kind == ShuffleKind::down) source = l + other.argument < kWarp ? l + other.argument : l;
    if (source < 0 || source >= kWarp || (mine.mask >> source & 1) == 0)
      throw Refused(cat("lane ", l, " asks lane ", source, " at ", name_of(mine.line), ", which mask ",
                        mine.mask, " does not name"));
    other.bits = given[source];
  }
  if (!mine.kind) ++warp_epochs_[static_cast<size_t>(present_ / kWarp)];
}

Use Block::use() const {
  return {launch,   block,           epoch_, warp_epochs_[static_cast<size_t>(present_ / kWarp)],
          present_, present_ / kWarp};
}

void wait_at_warp(unsigned mask, std::optional<ShuffleKind> kind, uint64_t bits, int argument,
                  const SourceLine& line) {
  Fiber& fiber = block_of_now.present();
  fiber.state = Fiber::State::waits_for_warp;
  fiber.line = line;
  fiber.mask = mask;
  fiber.kind = kind;
  fiber.bits = bits;
  fiber.argument = argument;
  block_of_now.arrived_at_warp();
  block_of_now.wait();
}

}  // namespace

void play(const LaunchSize& size, const std::function<void()>& thread) {
  if (size.blocks < 1 || size.blocks > kMostBlocks || size.threads < 1 || size.threads > kMostThreads)
    throw Refused(cat("a launch of ", size.blocks, " blocks of ", size.threads, " threads"));
  if (running) throw Refused("a launch within a kernel");
  present().begin_launch();
  ++block_of_now.launch;
  gridDim.x = static_cast<unsigned>(size.blocks);
  blockDim.x = static_cast<unsigned>(size.threads);
  running = true;
  try {
    for (int64_t block = 0; block < size.blocks; ++block) {
      blockIdx.x = static_cast<unsigned>(block);
      block_of_now.run(thread, block, size.threads);
    }
  } catch (...) {
    running = false;
    throw;
  }
  running = false;
}

void wait_for_block(const SourceLine& line) {
  Fiber& fiber = block_of_now.present();
  fiber.state = Fiber::State::waits_for_block;
  fiber.line = line;
  block_of_now.wait();
}

void wait_for_warp(unsigned mask, const SourceLine& line) {
  wait_at_warp(mask, {}, 0, 0, line);
}

uint64_t lane_bits(ShuffleKind kind, unsigned mask, uint64_t bits, int argument, const SourceLine& line) {
  wait_at_warp(mask, kind, bits, argument, line);
  return block_of_now.present().bits;
}

Use present_use() {
  if (!running) throw Refused("an access to global memory by no kernel");
  return block_of_now.use();
}
std::string present_thread() {
  if (!running) return "the test";
  return cat("block ", block_of_now.block, ", thread ", block_of_now.present_thread());
}

std::string name_of(const Use& use) {
  if (use.block == Use::kSeveralBlocks) return "several blocks";
  if (use.thread == Use::kSeveralWarps) return "several warps";
  return cat("block ", use.block, ", ",
             use.thread == Use::kOneWarp ? cat("warp ", use.warp) : cat("thread ", use.thread));
}

bool ordered(const Use& before, const Use& now) {
  if (before.thread == Use::kNobody || before.launch != now.launch) return true;
  if (before.block != now.block) return false;
  if (before.thread == now.thread || before.block_epoch < now.block_epoch) return true;
  return before.thread != Use::kSeveralWarps && before.warp == now.warp && before.warp_epoch < now.warp_epoch;
}

Use with_reader(const Use& reads, const Use& now) {
  if (ordered(reads, now)) return now;
  Use both = now;
  both.thread = reads.block == now.block && reads.warp == now.warp && reads.thread != Use::kSeveralWarps
                    ? Use::kOneWarp
                    : Use::kSeveralWarps;
  if (reads.block != now.block) both.block = Use::kSeveralBlocks;
  return both;
}

void use_shared(SharedElement& element, bool writes, int64_t index, int64_t size) {
  if (index < 0 || index >= size)
    throw Refused(cat(present_thread(), " uses element ", index, " of a shared array of ", size));
  const Use now = present_use();
  const bool of_this_block = element.write.launch == now.launch && element.write.block == now.block;
  if (!writes && !of_this_block)
    throw Refused(cat(present_thread(), " reads element ", index, " of a shared array, which nobody wrote"));
  const auto check = [&](const Use& before) {
    if (before.block == now.block && !ordered(before, now))
      throw Refused(cat(present_thread(), writes ? " writes" : " reads", " element ", index,
                        " of a shared array, which ", name_of(before), " used, and no barrier lies between"));
  };
  check(element.write);
  if (writes) {
    if (element.read.launch == now.launch) check(element.read);
    element.write = now;
  } else {
    const bool again = element.read.launch == now.launch && element.read.block == now.block;
    element.read = again ? with_reader(element.read, now) : now;
  }
}

void check_shared_alignment(int64_t index, int64_t count) {
  if (index % count != 0)
    throw Refused(cat(present_thread(), " uses ", count, " elements of a shared array at once, from element ",
                      index, ", which is no multiple"));
}

}  // namespace trireme::played
