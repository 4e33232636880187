// Who has come to a run, and what each is told.
#include "trireme/comm/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RankIdentity rank_0_of(int size) {
  RankIdentity identity;
  identity.size = size;
  return identity;
}

Hello hello_of(int rank, int size) {
  Hello hello;
  hello.rank = rank;
  hello.size = size;
  hello.attempt = "0";
  hello.version = program_version();
  hello.host = std::string(100, 'h');
  hello.secret_origin = std::string(100, 's');
  return hello;
}

TEST(Meeting, that_is_over_admits_no_second_process_of_a_rank_and_none_of_another_size) {
  Meeting meeting(rank_0_of(2));
  for (const int rank : {0, 1}) EXPECT_FALSE(meeting.come(hello_of(rank, 2)).has_value());
  ASSERT_EQ(meeting.verdict().value().kind, Verdict::Kind::go);
  for (const int size : {2, 3}) {
    const auto told = meeting.come(hello_of(1, size));
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->kind, Verdict::Kind::come_later);
    EXPECT_THAT(told->reason, HasSubstr("the run has begun without rank 1 (host "));
  }
  Hello more = hello_of(1, 2);
  more.first = false;
  EXPECT_FALSE(meeting.come(more).has_value()) << "one connection more of a rank that had come";
}

TEST(Meeting, tells_who_is_missing_in_a_message_that_a_rank_accepts) {
  constexpr int kSize = 1000;
  Meeting meeting(rank_0_of(kSize));
  meeting.come(hello_of(0, kSize));
  meeting.end(1.0);
  EXPECT_THAT(meeting.verdict().value().reason, HasSubstr("ranks 1-999 of 1000 did not come"));

  Meeting stale(rank_0_of(kSize));
  stale.come(hello_of(0, kSize));
  for (int rank = 1; rank < kSize; rank += 2) stale.turn_away(hello_of(rank, kSize));
  for (int rank = 2; rank < kSize; rank += 2) stale.come(hello_of(rank, kSize));
  stale.end(1.0);
  const Verdict verdict = stale.verdict().value();
  std::string frame = proven_frame({"4", verdict.reason}, "secret", kRoleOfStore, {});
  EXPECT_NO_THROW(take_frame(frame, kLargestHello_bytes));
}

TEST(Meeting, names_some_of_many_that_were_turned_away) {
  constexpr int kSize = 23;
  Meeting meeting(rank_0_of(kSize));
  meeting.come(hello_of(0, kSize));
  for (int rank = 1; rank < kSize; ++rank) {
    Hello hello = hello_of(rank, kSize);
    hello.host = "node";
    hello.secret_origin = "TRIREME_SECRET_FILE";
    meeting.turn_away(hello);
  }
  meeting.end(1.0);
  EXPECT_THAT(meeting.verdict().value().reason,
              AllOf(HasSubstr("rank 8 (host node"), Not(HasSubstr("rank 9 (host node")),
                    HasSubstr("; and 14 more; give all ranks the same TRIREME_SECRET")));
}

TEST(Meeting, is_decided_by_no_claim_without_proof) {
  Meeting meeting(rank_0_of(2));
  meeting.come(hello_of(0, 2));
  meeting.turn_away(hello_of(1, 2));
  meeting.end(1.0);
  EXPECT_EQ(meeting.verdict().value().kind, Verdict::Kind::missing);
  EXPECT_THAT(meeting.verdict().value().reason, HasSubstr("did not prove the run's secret"));
}

}  // namespace
}  // namespace trireme
