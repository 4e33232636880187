// Ranks that meet on a board: what is said when one fails, ends or comes late in the middle of a collective.
// Two boards of this process stand for two ranks; the second says that it is a process which the test can
// end.
#include <future>
#include <signal.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/process_post_board.h"
#include "trireme/comm/thread_post_board.h"

#include "tests/support/error_message.h"

namespace trireme::post_board_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

// The copy of this process has the same bytes at the same addresses.
class CopyOfThisProcess {
 public:
  CopyOfThisProcess() : id_(::fork()) {
    if (id_ == 0) {
      for (;;) ::pause();
    }
  }
  ~CopyOfThisProcess() { end(); }
  CopyOfThisProcess& operator=(CopyOfThisProcess&&) = delete;
  pid_t id() const { return id_; }
  void end() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(std::exchange(id_, 0), nullptr, 0);
  }

 private:
  pid_t id_;
};

std::shared_ptr<const PeerProcess> process_of(pid_t id) {
  Json card = MemoryProof().card();
  card["process"] = id;
  return std::make_shared<PeerProcess>(card);
}

struct TwoRanks {
  explicit TwoRanks(pid_t second) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const std::vector<std::shared_ptr<const PeerProcess>> peers = {process_of(::getpid()),
                                                                   process_of(second)};
    for (int rank = 0; rank < 2; ++rank)
      boards.push_back(std::make_unique<ProcessPostBoard>(*store, rank, std::vector<int>{3, 7}, peers));
  }
  std::vector<std::unique_ptr<ProcessPostBoard>> boards;
};

at::Tensor bytes_nowhere() {
  return at::from_blob(reinterpret_cast<void*>(4096), {64}, at::kByte);
}

constexpr milliseconds kTimeout{20000};

// What an exchange throws; empty: nothing.
std::string error_of(PostBoard& board, const at::Tensor& bytes, const std::function<void()>& copy,
                     milliseconds timeout = kTimeout) {
  try {
    board.exchange({"alltoall", bytes, {}}, timeout, copy);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST(ProcessPostBoard, names_the_rank_that_ends_before_its_bytes_are_read) {
  const at::Tensor bytes = at::full({1 << 20}, 5, at::kByte);
  CopyOfThisProcess second;
  TwoRanks ranks(second.id());
  auto of_second = std::async(std::launch::async, [&] { return error_of(*ranks.boards[1], bytes, [] {}); });
  at::Tensor got = at::zeros({1 << 20}, at::kByte);
  const std::string name = cat("rank 7 (process ", second.id(), ") has ended");
  EXPECT_EQ(error_of(*ranks.boards[0], at::empty({0}, at::kByte),
                     [&] {
                       ranks.boards[0]->copy_from(1, 0, got);
                       EXPECT_TRUE(at::equal(got, bytes));
                       second.end();
                       ranks.boards[0]->copy_from(1, 0, got);
                     }),
            name);
  EXPECT_EQ(of_second.get(), name) << "all hear of it";
}

TEST(ProcessPostBoard, says_why_a_rank_failed_whose_bytes_are_gone) {
  TwoRanks ranks(::getpid());
  auto of_second = std::async(std::launch::async, [&] {
    return error_of(*ranks.boards[1], bytes_nowhere(), [] { throw std::runtime_error("the disk is full"); });
  });
  at::Tensor got = at::zeros({64}, at::kByte);
  EXPECT_EQ(error_of(*ranks.boards[0], at::empty({0}, at::kByte),
                     [&] {
                       EXPECT_EQ(of_second.get(), "the disk is full");
                       ranks.boards[0]->copy_from(1, 0, got);
                     }),
            "the disk is full");
}

TEST(ProcessPostBoard, names_the_rank_whose_bytes_cannot_be_read) {
  TwoRanks ranks(::getpid());
  auto of_second =
      std::async(std::launch::async, [&] { return error_of(*ranks.boards[1], bytes_nowhere(), [] {}); });
  at::Tensor got = at::zeros({64}, at::kByte);
  const std::string why =
      error_of(*ranks.boards[0], at::empty({0}, at::kByte), [&] { ranks.boards[0]->copy_from(1, 0, got); });
  EXPECT_THAT(why, HasSubstr(cat("rank 7: the memory of process ", ::getpid(), " cannot be read: Bad addr")));
  EXPECT_EQ(of_second.get(), why);
}

// A rank comes within the timeout and then copies for longer than what is left of it.
template <typename Boards>
void expect_that_a_late_rank_may_copy(Boards&& boards) {
  constexpr milliseconds kLate{600}, kCopies{600}, kShort{1000};
  const at::Tensor none = at::empty({0}, at::kByte);
  auto late = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(kLate);
    return error_of(
        *boards[1], none, [&] { std::this_thread::sleep_for(kCopies); }, kShort);
  });
  EXPECT_EQ(error_of(
                *boards[0], none, [] {}, kShort),
            "");
  EXPECT_EQ(late.get(), "");
}

TEST(PostBoard, does_not_count_what_a_rank_copies_against_its_coming_late) {
  expect_that_a_late_rank_may_copy(TwoRanks(::getpid()).boards);
  const auto meeting = std::make_shared<ThreadMeeting>(std::vector<int>{3, 7});
  std::vector<std::unique_ptr<ThreadPostBoard>> threads;
  threads.reserve(2);
  for (int rank = 0; rank < 2; ++rank) threads.push_back(std::make_unique<ThreadPostBoard>(meeting, rank));
  expect_that_a_late_rank_may_copy(threads);
}

// Rank 7 copies for so long that rank 3, whose copy has failed, is in its next exchange by then.
TEST(PostBoard, that_is_broken_shows_no_other_bytes_to_a_rank_that_still_copies) {
  const auto meeting = std::make_shared<ThreadMeeting>(std::vector<int>{3, 7});
  ThreadPostBoard first(meeting, 0), second(meeting, 1);
  const at::Tensor before = at::full({64}, 5, at::kByte), after = at::full({64}, 6, at::kByte);
  at::Tensor got = at::zeros({64}, at::kByte);
  std::promise<void> both_failed;
  auto of_second = std::async(std::launch::async, [&] {
    return error_of(second, at::empty({0}, at::kByte), [&] {
      both_failed.get_future().wait();
      second.copy_from(0, 0, got);
    });
  });
  const std::string why = "the disk is full";
  EXPECT_EQ(error_of(first, before, [&] { throw std::runtime_error(why); }), why);
  EXPECT_EQ(error_of(first, after, [] {}), why);
  both_failed.set_value();
  EXPECT_EQ(of_second.get(), why);
  EXPECT_TRUE(at::equal(got, before));
}

TEST(ProcessPostBoard, without_its_page_tells_where_it_was_sought) {
  c10d::HashStore store;
  const std::string closed_descriptor = "1048576";
  store.set("page", std::vector<uint8_t>(closed_descriptor.begin(), closed_descriptor.end()));
  const std::vector<std::shared_ptr<const PeerProcess>> peers(2, process_of(::getpid()));
  EXPECT_THAT(message_of<std::runtime_error>([&] {
                const ProcessPostBoard board(store, 1, {0, 1}, peers);
              }),
              AllOf(HasSubstr("cannot be opened as /proc/"), HasSubstr("No such file")));
}

}  // namespace
}  // namespace trireme::post_board_test
