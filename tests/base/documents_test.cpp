#include "trireme/base/documents.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/support/error_message.h"

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

std::string refusal_of_cuts(const std::vector<int64_t>& cu_seqlens) {
  return message_of<DataError>([&] { const Documents documents(cu_seqlens); });
}
std::string refusal_of_positions(const std::vector<int64_t>& positions) {
  return message_of<DataError>([&] { Documents::of_positions(positions); });
}

TEST(Documents, every_token_lies_in_the_document_whose_cuts_enclose_it) {
  const Documents documents({0, 1, 2, 7, 8, 20});
  EXPECT_EQ(documents.tokens(), 20);
  for (int64_t token = 0; token < 20; ++token) {
    const TokenSpan document = documents.at(token);
    EXPECT_LE(document.begin, token);
    EXPECT_GT(document.end, token);
    EXPECT_THAT(documents.cu_seqlens(), ::testing::Contains(document.begin));
    EXPECT_THAT(documents.cu_seqlens(), ::testing::Contains(document.end));
  }
  EXPECT_EQ(documents.at(1), (TokenSpan{1, 2}));
  EXPECT_EQ(documents.at(6), (TokenSpan{2, 7}));
  EXPECT_EQ(documents.longest(), 12);
  EXPECT_THROW(documents.at(20), InternalError);
  EXPECT_THROW(documents.at(-1), InternalError);
}

TEST(Documents, a_sample_of_one_document_and_an_empty_sample) {
  const Documents one = Documents::one(5), none = Documents::one(0);
  EXPECT_THAT(one.cu_seqlens(), ElementsAre(0, 5));
  EXPECT_EQ(one.at(4), (TokenSpan{0, 5}));
  EXPECT_THAT(none.cu_seqlens(), ElementsAre(0));
  EXPECT_EQ(none.tokens(), 0);
  EXPECT_EQ(none.longest(), 0);
}

TEST(Documents, a_position_of_zero_begins_one) {
  const auto cuts = [](const std::vector<int64_t>& positions) {
    return Documents::of_positions(positions).cu_seqlens();
  };
  EXPECT_THAT(cuts({0, 1, 2, 3}), ElementsAre(0, 4));
  EXPECT_THAT(cuts({0, 1, 0, 0, 0, 1, 2}), ElementsAre(0, 2, 3, 4, 7));
  EXPECT_THAT(cuts({0}), ElementsAre(0, 1));
  EXPECT_THAT(cuts({0, 1, 2, 0, 0, 0}), ElementsAre(0, 3, 4, 5, 6));  // a tail of padding
  EXPECT_THAT(cuts({}), ElementsAre(0));
}

TEST(Documents, positions_of_cuts_give_the_cuts_back) {
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 1}, {0, 1, 2, 3}, {0, 5, 6, 100}, {0, 64, 128, 192}}) {
    std::vector<int64_t> positions(cuts.back());
    for (size_t i = 1; i < cuts.size(); ++i)
      std::iota(positions.begin() + cuts[i - 1], positions.begin() + cuts[i], 0);
    EXPECT_EQ(Documents::of_positions(positions).cu_seqlens(), cuts);
  }
}

TEST(Documents, cuts_that_do_not_begin_with_zero_and_grow_are_refused) {
  EXPECT_THAT(refusal_of_cuts({}), HasSubstr("begin with 0, got nothing"));
  EXPECT_THAT(refusal_of_cuts({1, 5}), HasSubstr("begin with 0, got 1"));
  EXPECT_THAT(refusal_of_cuts({0, 5, 5, 9}), HasSubstr("entry 2 is 5 after 5"));
  EXPECT_THAT(refusal_of_cuts({0, 5, 3}), HasSubstr("entry 2 is 3 after 5"));
  EXPECT_EQ(refusal_of_cuts({0, 5, 6}), "no error");
}

TEST(Documents, positions_that_neither_count_up_nor_begin_again_are_refused_with_their_token) {
  EXPECT_THAT(refusal_of_positions({3, 4, 5}), HasSubstr("token 0 has position 3 as the first"));
  EXPECT_THAT(refusal_of_positions({0, 1, 3}), HasSubstr("token 2 has position 3 after 1"));
  EXPECT_THAT(refusal_of_positions({0, 1, 1}), HasSubstr("token 2 has position 1 after 1"));
  EXPECT_THAT(refusal_of_positions({0, 1, 0, 2}), HasSubstr("token 3 has position 2 after 0"));
  EXPECT_THAT(refusal_of_positions({0, -1}), HasSubstr("token 1 has position -1"));
  EXPECT_EQ(refusal_of_positions({0, 1, 0}), "no error");
}

TEST(Documents, a_batch_without_documents_has_one_a_sample) {
  const std::vector<Documents> batch{Documents({0, 2, 6}), Documents::one(6)};
  EXPECT_THAT(documents_of(batch, 0, 6).cu_seqlens(), ElementsAre(0, 2, 6));
  EXPECT_THAT(documents_of(batch, 1, 6).cu_seqlens(), ElementsAre(0, 6));
  EXPECT_THAT(documents_of({}, 3, 6).cu_seqlens(), ElementsAre(0, 6));
}

}  // namespace
}  // namespace trireme
