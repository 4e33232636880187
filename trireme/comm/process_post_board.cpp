#include "trireme/comm/process_post_board.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/comm/connection.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kWatch{100};        // between looks for processes that have ended
constexpr milliseconds kTimeToHear{1000};  // that a rank is lost
constexpr int kSpins = 2000;               // some 50 us, about what waking a process costs
// A copy that several threads of a rank share; each has at least so much.
constexpr int64_t kPieceOfCopy_bytes = 1 << 20;

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(uint32_t), "processes share the words");

struct alignas(64) RankOnPage {
  Word arrivals{0};
  Word left{0};
  std::array<char, 40> collective{};  // ends in a zero
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t splits = 0;
  std::array<char, 1000> failure{};  // why this rank broke the board, if it did
};

// Another process may write there at any time; a torn text is no worse than a strange one.
std::string_view text_in(const char* begin, size_t capacity) {
  return {begin, ::strnlen(begin, capacity)};
}

void wait_on(const Word& word, uint32_t value, milliseconds most) {
  const timespec time{.tv_sec = most.count() / 1000, .tv_nsec = most.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake(const Word& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// [header][RankOnPage x P][send_bytes: P x P]
struct BoardPage {
  Word broken{0};  // the rank that broke it first, counted from 1; 0: none

  static size_t bytes(size_t ranks) {
    return sizeof(BoardPage) + 64 + ranks * sizeof(RankOnPage) + ranks * ranks * sizeof(int64_t);
  }
  RankOnPage& of(int rank) {
    auto* begin = reinterpret_cast<char*>(this) + (sizeof(BoardPage) + 63) / 64 * 64;
    return reinterpret_cast<RankOnPage*>(begin)[rank];
  }
  int64_t* send_bytes(int rank, int ranks) {
    return reinterpret_cast<int64_t*>(&of(ranks)) + int64_t{rank} * ranks;
  }
};

namespace {

[[noreturn]] void throw_system(const std::string& what) {
  throw std::runtime_error(cat(what, ": ", std::strerror(errno)));
}

std::shared_ptr<BoardPage> map_page(int descriptor, size_t ranks) {
  const size_t bytes = BoardPage::bytes(ranks);
  void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (page == MAP_FAILED) throw_system("the page that ranks share cannot be mapped");
  return {static_cast<BoardPage*>(page), [bytes](BoardPage* mapped) { ::munmap(mapped, bytes); }};
}

// Rank 0 of the group makes the page and tells its descriptor, through which the others open it.
FileDescriptor make_page(c10d::Store& store, size_t ranks) {
  FileDescriptor descriptor(::memfd_create("trireme ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.is_open() ||
      ::ftruncate(descriptor.get(), static_cast<off_t>(BoardPage::bytes(ranks))) != 0 ||
      ::fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw_system("a page for ranks to share cannot be made");
  const auto page = map_page(descriptor.get(), ranks);
  new (page.get()) BoardPage;
  for (size_t of = 0; of < ranks; ++of) new (&page->of(static_cast<int>(of))) RankOnPage;
  store.set("page", std::to_string(descriptor.get()));
  return descriptor;
}

// A rank closes its page when it hears of a lost one, and this rank may come after that: the store tells which.
void throw_what_the_store_tells(c10d::Store& store) {
  try {
    store.wait({"never set"}, kTimeToHear);
  } catch (const DeadlinePassed&) {
    // It knows of none.
  } catch (const c10::Error&) {
    // c10d's own stores know of none, whatever happens.
  }
}

FileDescriptor open_page(c10d::Store& store, const PeerProcess& of_rank_0) {
  const std::string path = cat("/proc/", of_rank_0.process_id(), "/fd/", store.get_to_str("page"));
  FileDescriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (descriptor.is_open()) return descriptor;
  const std::string why = std::strerror(errno);
  throw_what_the_store_tells(store);
  throw std::runtime_error(cat("the page that ranks share cannot be opened as ", path, ": ", why));
}

}  // namespace

ProcessPostBoard::ProcessPostBoard(c10d::Store& store, int rank, std::vector<int> world_ranks,
                                   std::vector<std::shared_ptr<const PeerProcess>> peers)
    : PostBoard(rank, std::move(world_ranks)),
      peers_(std::move(peers)),
      descriptor_(rank == 0 ? make_page(store, peers_.size()) : open_page(store, *peers_.at(0))),
      page_(map_page(descriptor_.get(), peers_.size())) {}

void ProcessPostBoard::show(const Post& post) {
  RankOnPage& own = page_->of(rank());
  posted_ = post.bytes;
  own.address = reinterpret_cast<uint64_t>(posted_.data_ptr());
  own.bytes = posted_.numel();
  TRIREME_ASSERT(post.collective.size() < own.collective.size(), post.collective);
  own.collective.fill(0);
  std::copy(post.collective.begin(), post.collective.end(), own.collective.begin());
  own.splits = static_cast<int64_t>(post.send_bytes.size());
  TRIREME_ASSERT(own.splits <= ranks(), own.splits, " splits for ", ranks(), " ranks");
  std::copy(post.send_bytes.begin(), post.send_bytes.end(), page_->send_bytes(rank(), ranks()));
}

std::string_view ProcessPostBoard::collective(int peer) const {
  const auto& text = page_->of(peer).collective;
  return text_in(text.data(), text.size());
}

std::span<const int64_t> ProcessPostBoard::send_bytes(int peer) const {
  const int64_t splits = std::clamp<int64_t>(page_->of(peer).splits, 0, ranks());
  return {page_->send_bytes(peer, ranks()), static_cast<size_t>(splits)};
}

void ProcessPostBoard::copy_from(int peer, int64_t offset, at::Tensor to) const {
  const int64_t bytes = to.size(0);
  if (peer == rank()) {
    to.copy_(posted_.narrow(0, offset, bytes));
    return;
  }
  const RankOnPage& theirs = page_->of(peer);
  if (offset < 0 || offset + bytes > theirs.bytes)
    throw std::runtime_error(cat("rank ", world_ranks()[peer], " shows ", theirs.bytes, " bytes, rank ",
                                 world_ranks()[rank()], " asks for ", bytes, " from ", offset));
  const uint64_t from = theirs.address + static_cast<uint64_t>(offset);
  auto* const into = static_cast<char*>(to.data_ptr());
  std::string why;
  try {
    at::parallel_for(0, bytes, kPieceOfCopy_bytes, [&](int64_t begin, int64_t end) {
      peers_[peer]->read(from + static_cast<uint64_t>(begin), into + begin, end - begin);
    });
  } catch (const std::runtime_error& error) {
    throw_if_broken();  // a rank that failed may have freed its bytes
    why = cat("rank ", world_ranks()[peer], ": ", error.what());
  }
  // A process that takes over the number of one that ended would have been read in its stead.
  if (peers_[peer]->has_ended()) why = ended(peer);
  if (!why.empty()) throw std::runtime_error(why);
}

std::string ProcessPostBoard::ended(int peer) const {
  return cat("rank ", world_ranks()[peer], " (process ", peers_[peer]->process_id(), ") has ended");
}

bool ProcessPostBoard::has_come(int peer) const {
  const uint32_t theirs = page_->of(peer).arrivals.load(std::memory_order_acquire);
  return static_cast<int32_t>(theirs - arrivals_) >= 0;
}

void ProcessPostBoard::wait_for_all(steady_clock::time_point deadline) {
  throw_if_broken();
  Word& own = page_->of(rank()).arrivals;
  own.store(++arrivals_, std::memory_order_release);
  wake(own);
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank()) wait_for(peer, deadline);
  }
}

void ProcessPostBoard::wait_for(int peer, steady_clock::time_point deadline) {
  const Word& theirs = page_->of(peer).arrivals;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (has_come(peer)) return;
    pause_processor();
  }
  for (;;) {
    const uint32_t value = theirs.load(std::memory_order_acquire);
    if (has_come(peer)) return;
    throw_if_broken();
    if (page_->of(peer).left.load(std::memory_order_acquire) != 0 && !has_come(peer))
      throw std::runtime_error(cat("rank ", world_ranks()[peer], " has left the group"));
    const auto now = steady_clock::now();
    if (now >= deadline) {
      std::vector<int> missing;
      for (int of = 0; of < ranks(); ++of) {
        if (!has_come(of)) missing.push_back(world_ranks()[of]);
      }
      if (!missing.empty()) fail_and_throw(timed_out_without(missing));
      continue;
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - now);
    wait_on(theirs, value, std::min(kWatch, left));
    if (!has_come(peer)) look_for_ended_processes();
  }
}

void ProcessPostBoard::throw_if_broken() const {
  const uint32_t by = page_->broken.load(std::memory_order_acquire);
  if (by == 0) return;
  const uint32_t index = std::min(by, static_cast<uint32_t>(ranks())) - 1;
  const auto& why = page_->of(static_cast<int>(index)).failure;
  throw std::runtime_error(std::string(text_in(why.data(), why.size())));
}

void ProcessPostBoard::look_for_ended_processes() {
  std::vector<pollfd> ends;
  ends.reserve(peers_.size());
  for (const auto& peer : peers_)
    ends.push_back({.fd = peer->end_descriptor(), .events = POLLIN, .revents = 0});
  if (::poll(ends.data(), ends.size(), 0) <= 0) return;
  std::string why;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (ends[peer].revents == 0 || has_come(peer)) continue;
    why += cat(why.empty() ? "" : "; ", ended(peer));
  }
  if (!why.empty()) fail_and_throw(why);
}

void ProcessPostBoard::fail_and_throw(const std::string& why) {
  fail(why);
  throw std::runtime_error(why);
}

void ProcessPostBoard::fail(const std::string& why) {
  auto& failure = page_->of(rank()).failure;
  why.copy(failure.data(), failure.size() - 1);
  uint32_t sound = 0;
  if (!page_->broken.compare_exchange_strong(sound, static_cast<uint32_t>(rank()) + 1)) return;
  for (int of = 0; of < ranks(); ++of) wake(page_->of(of).arrivals);
}

void ProcessPostBoard::leave() {
  Word& left = page_->of(rank()).left;
  left.store(1, std::memory_order_release);
  wake(page_->of(rank()).arrivals);
}

}  // namespace trireme
