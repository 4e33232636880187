// Documents and their answers are the same however they are packed and shared by ranks; what a model finds most
// likely is judged by Transformers' generation (tests/python/test_prompts.py).
#include "trireme/eval/answers.h"

#include <array>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/eval/loss_by_position.h"

#include "tests/eval/evaluated_set.h"

namespace trireme::answers_test {
namespace {

constexpr int64_t kRowTokens = 60;

class Answers : public testing::EvaluatedSet {
 protected:
  // The third has no target.
  inline static const std::vector<Document> kDocuments{{50, 41}, {9, 1},  {12, 12}, {60, 3},
                                                       {31, 30}, {20, 0}, {2, 1},   {44, 20}};

  Answers() : EvaluatedSet(kDocuments) {}

  struct Found {
    std::vector<AnsweredDocument> documents;
    PositionLoss loss;
  };

  Found evaluate(int ranks, int ulysses, int ring, Packing packing) {
    Found found;
    std::mutex mutex;
    on_ranks(ranks, ulysses, ring, kRowTokens, packing, [&](Engine& engine, const Rows& rows) {
      EvaluationLoader loader = rows.loader(), again = rows.loader();
      Found of_rank{evaluate_answers(engine, loader),
                    evaluate_loss_by_position(engine, again, {0, kRowTokens})};
      const std::lock_guard<std::mutex> lock(mutex);
      if (!found.documents.empty()) {
        EXPECT_EQ(of_rank.documents.size(), found.documents.size()) << "ranks differ";
      }
      found = std::move(of_rank);
    });
    return found;
  }
};

TEST_F(Answers, of_all_documents_come_in_the_order_of_rows_with_all_their_targets) {
  const Found found = evaluate(1, 1, 1, Packing::none);
  std::vector<std::pair<int, int>> expected;
  for (const auto& [size, prompt] : kDocuments)
    if (size > prompt) expected.emplace_back(size, size - std::max(prompt, 1));
  ASSERT_EQ(found.documents.size(), expected.size());
  double loss = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found.documents[i].tokens, expected[i].first);
    EXPECT_EQ(found.documents[i].target_tokens, expected[i].second);
    EXPECT_LE(found.documents[i].wrong_tokens, expected[i].second);
    loss += found.documents[i].loss_sum;
  }
  EXPECT_NEAR(loss / static_cast<double>(found.loss.target_tokens()), found.loss.loss(), 1e-6);
}

TEST_F(Answers, are_the_same_on_any_ranks) {
  for (const Packing packing : {Packing::none, Packing::best_fit}) {
    const Found one = evaluate(1, 1, 1, packing);
    for (const auto& [ranks, ulysses, ring] :
         std::vector<std::array<int, 3>>{{2, 1, 1}, {2, 2, 1}, {2, 1, 2}, {3, 1, 1}, {4, 2, 1}, {4, 2, 2}}) {
      const Found found = evaluate(ranks, ulysses, ring, packing);
      ASSERT_EQ(found.documents.size(), one.documents.size()) << ranks;
      for (size_t i = 0; i < one.documents.size(); ++i) {
        EXPECT_EQ(found.documents[i].tokens, one.documents[i].tokens);
        EXPECT_EQ(found.documents[i].target_tokens, one.documents[i].target_tokens);
        EXPECT_EQ(found.documents[i].wrong_tokens, one.documents[i].wrong_tokens);
        EXPECT_NEAR(found.documents[i].loss_sum, one.documents[i].loss_sum, 1e-4 * one.documents[i].loss_sum);
      }
    }
  }
}

TEST(AnswersByLength, count_a_document_where_its_length_is) {
  const AnswersByLength found =
      by_length({{64, 4, 0, 1.0}, {65, 6, 3, 2.0}, {128, 2, 0, 0.5}, {1, 1, 1, 9.0}}, {0, 64, 128});
  ASSERT_EQ(found.lengths.size(), 2U);
  EXPECT_EQ(found.lengths[0].scores.documents, 2);
  EXPECT_EQ(found.lengths[0].scores.exact, 1);
  EXPECT_EQ(found.lengths[0].scores.right_tokens, 4);
  EXPECT_EQ(found.lengths[1].scores.documents, 2);
  EXPECT_EQ(found.lengths[1].scores.target_tokens, 8);
  EXPECT_DOUBLE_EQ(found.lengths[1].scores.token_accuracy(), 5.0 / 8);
  EXPECT_EQ(found.all.documents, 4);
  EXPECT_DOUBLE_EQ(found.all.loss(), 12.5 / 13);
  EXPECT_EQ(found.to_json().at("by_length").size(), 2U);
  EXPECT_THAT(found.table(), ::testing::HasSubstr("65 - 128"));
}

}  // namespace
}  // namespace trireme::answers_test
