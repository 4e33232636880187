// A rank that ends, or does not come, ends the others soon, with a CommError that says who waited for whom,
// where and how long.
#include "trireme/comm/failure.h"

#include <signal.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/comm/agreement.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"
#include "tests/support/ranks.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Backend;
using ::testing::HasSubstr;
using testing::run_ranks;

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

class Failure : public ::testing::TestWithParam<Backend> {};

TEST_P(Failure, of_one_rank_ends_the_others_with_CommError_long_before_the_timeout) {
  const auto start = steady_clock::now();
  std::vector<std::string> messages(3);
  EXPECT_THROW(run_ranks(
                   GetParam(), 3,
                   [&](World& world) {
                     const auto group = world.make_group("all", {{0, 1, 2}});
                     at::Tensor tensor = at::ones({4});
                     all_reduce_sum(*group, tensor);
                     if (world.rank() == 1) throw DataError("the file is broken");
                     try {
                       all_reduce_sum(*group, tensor);
                       FAIL() << "a sum without rank 1";
                     } catch (const CommError& error) {
                       messages[world.rank()] = error.what();
                     }
                   },
                   milliseconds(20000)),
               DataError);
  EXPECT_LT(seconds_since(start), 5);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(messages[rank], HasSubstr("all_reduce_sum of group 'all'"));
    EXPECT_THAT(messages[rank], HasSubstr(cat("on rank ", rank)));
    EXPECT_THAT(messages[rank], HasSubstr("Ranks taking part: 0, 1, 2"));
  }
}

TEST_P(Failure, a_rank_that_does_not_come_gives_CommError_after_the_timeout) {
  std::string message;
  run_ranks(
      GetParam(), 2,
      [&](World& world) {
        const auto group = world.make_group("late", {{0, 1}});
        if (world.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(3000));
          return;
        }
        const auto start = steady_clock::now();
        try {
          all_to_all(*group, at::zeros({2}), std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 1});
          FAIL() << "an exchange without rank 1";
        } catch (const CommError& error) {
          message = error.what();
        }
        EXPECT_GT(seconds_since(start), 0.45);
        EXPECT_LT(seconds_since(start), 2.9);
      },
      milliseconds(500));
  EXPECT_THAT(message, HasSubstr("all_to_all of group 'late' failed on rank 0 after "));
  EXPECT_THAT(message, HasSubstr("timeout 0.5 s"));
  EXPECT_THAT(message, HasSubstr("Ranks taking part: 0, 1"));
}

TEST_P(Failure, names_world_ranks_not_places_in_the_group) {
  std::string message;
  run_ranks(
      GetParam(), 4,
      [&](World& world) {
        const auto group = world.make_group("odd", {{0, 2}, {1, 3}});
        if (world.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(2000));
        } else if (world.rank() == 3) {
          try {
            barrier(*group);
          } catch (const CommError& error) {
            message = error.what();
          }
        }
      },
      milliseconds(600));
  EXPECT_THAT(message, HasSubstr("barrier of group 'odd' failed on rank 3"));
  EXPECT_THAT(message, HasSubstr("Ranks taking part: 1, 3"));
}

INSTANTIATE_TEST_SUITE_P(On, Failure, ::testing::Values(Backend::threads, Backend::gloo, Backend::memory),
                         [](const auto& info) { return testing::name_of(info.param); });

TEST(GlooBackend, leaves_a_write_to_a_rank_that_has_gone_an_error_and_no_end_of_the_process) {
  const auto before = ::signal(SIGPIPE, SIG_DFL);
  run_ranks(Backend::gloo, 2, [](World& world) { barrier(*world.make_group("all", {{0, 1}})); });
  EXPECT_EQ(::signal(SIGPIPE, before), SIG_IGN);
}

TEST(RethrowAsCommError, leaves_a_device_without_memory_to_the_user) {
  const FailureContext context{"all_gather of group 'all'", 0, {0, 1}, milliseconds(100)};
  const c10::OutOfMemoryError full(c10::SourceLocation{"f", "f.cpp", 1}, "CUDA out of memory");
  EXPECT_THROW(rethrow_as_comm_error(context, [&] { throw full; }), ConfigError);
  EXPECT_THROW(rethrow_as_comm_error(context, [] { throw std::bad_alloc(); }), ConfigError);
  EXPECT_THROW(rethrow_as_comm_error(context, [] { throw std::runtime_error("reset by peer"); }), CommError);
}

TEST(ThreadWorld, a_rank_that_returned_is_not_waited_for) {
  const auto start = steady_clock::now();
  EXPECT_THROW(run_ranks_as_threads(2,
                                    [](World& world) {
                                      const auto group = world.make_group("all", {{0, 1}});
                                      if (world.rank() == 0) barrier(*group);
                                    }),
               CommError);
  EXPECT_LT(seconds_since(start), 5);
}

TEST(ThreadWorld, ranks_in_different_collectives_are_told_so) {
  try {
    run_ranks_as_threads(2, [](World& world) {
      const auto group = world.make_group("all", {{0, 1}});
      at::Tensor tensor = at::zeros({2});
      if (world.rank() == 0) {
        barrier(*group);
      } else {
        broadcast(*group, tensor, 0);
      }
    });
    FAIL() << "different collectives met";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("barrier"));
    EXPECT_THAT(error.what(), HasSubstr("broadcast from 0"));
  }
}

TEST(PostBoardBackend, ranks_that_give_more_or_less_than_others_expect_are_told_so) {
  for (const Backend backend : {Backend::threads, Backend::memory}) {
    std::vector<std::string> messages(2);
    run_ranks(backend, 2, [&](World& world) {
      const auto group = world.make_group("all", {{0, 1}});
      at::Tensor tensor = at::zeros({world.rank() == 0 ? 4 : 3}, at::kFloat);
      try {
        broadcast(*group, tensor, 0);
      } catch (const CommError& error) {
        messages[world.rank()] = error.what();
      }
    });
    for (const std::string& message : messages)
      EXPECT_THAT(message, HasSubstr("rank 0 gives 16 bytes, rank 1 expects 12"))
          << testing::name_of(backend);
  }
}

TEST(ThreadWorld, throws_the_exception_of_the_rank_that_failed_first) {
  EXPECT_THROW(run_ranks_as_threads(4,
                                    [](World& world) {
                                      const auto group = world.make_group("all", {{0, 1, 2, 3}});
                                      if (world.rank() == 2) throw ConfigError("no such flag");
                                      barrier(*group);
                                    }),
               ConfigError);
}

TEST(ThreadWorld, throws_an_error_itself_and_not_the_word_of_a_rank_that_heard_of_it_and_ended_sooner) {
  const std::string told = testing::message_of<DataError>([] {
    run_ranks_as_threads(2, [](World& world) {
      const auto group = world.make_group("all", {{0, 1}});
      Agreement(*group, at::kCPU).all_or_none("reading", [&] {
        if (world.rank() == 1) throw DataError("token 50000 is too large");
      });
    });
  });
  EXPECT_EQ(told, "token 50000 is too large");
  EXPECT_EQ(testing::message_of<DataError>([] {
              run_ranks_as_threads(2, [](World& world) {
                const auto group = world.make_group("all", {{0, 1}});
                if (world.rank() == 0) throw DataError(cat("rank 1 failed; ", kAnotherSaysWhy));
                try {
                  barrier(*group);
                } catch (const CommError&) {
                }
                throw DataError("token 50000 is too large");
              });
            }),
            "token 50000 is too large");
}

}  // namespace
}  // namespace trireme
