#include "trireme/device/memory_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/byte_units.h"

namespace trireme {
namespace {

using enum MemoryCategory;
using ::testing::HasSubstr;
using testing::kGiB;
using ::testing::Not;
using ::testing::StartsWith;

MemoryBytes held(std::initializer_list<std::pair<MemoryCategory, int64_t>> parts) {
  MemoryBytes bytes;
  for (const auto& [category, value] : parts) bytes[category] = value;
  return bytes;
}

TEST(MemoryAdvice, starts_with_the_largest_saving_and_says_how_much) {
  const std::vector<MemoryOption> options = {
      {"--a", optimizer, 0.5}, {"--b", activations, 0.25}, {"--c", activations, 0.5}};
  EXPECT_EQ(memory_advice(held({{optimizer, 2 * kGiB}, {activations, 8 * kGiB}}), options),
            "--c (saves about 4.0 GiB of activations), --b (saves about 2.0 GiB of activations), "
            "--a (saves about 1.0 GiB of optimizer)");
  EXPECT_THAT(memory_advice(held({{optimizer, 20 * kGiB}, {activations, 8 * kGiB}}), options),
              StartsWith("--a (saves about 10.0 GiB"));
}

TEST(MemoryAdvice, counts_what_a_step_will_come_to_where_that_is_known) {
  const std::vector<MemoryOption> options = {{"--a", optimizer, 0.5}, {"--b", activations, 0.5, 16 * kGiB}};
  EXPECT_THAT(memory_advice(held({{optimizer, 2 * kGiB}}), options),
              StartsWith("--b (saves about 8.0 GiB of activations), --a (saves about 1.0 GiB"));
}

TEST(MemoryAdvice, leaves_out_what_saves_nothing_or_next_to_nothing_and_names_an_option_once) {
  const std::vector<MemoryOption> options = {{"--a", optimizer, 0.5},
                                             {"--a", tiles, 1},
                                             {"--b", activations, 0},
                                             {"--c", attention, 0.5},
                                             {"--d", gradients, 1}};
  const std::string advice = memory_advice(
      held({{optimizer, kGiB}, {tiles, kGiB}, {activations, kGiB}, {gradients, kGiB / 200}}), options);
  EXPECT_EQ(advice, "--a (saves about 1.0 GiB of tiles)");
  EXPECT_EQ(memory_advice({}, options), "");
}

TEST(MemoryAdvice, names_a_smaller_task_last_whatever_it_saves) {
  std::vector<MemoryOption> options = {{"--max_seq_length 512", activations, 0.9},
                                       {"--ulysses 8", activations, 0.5},
                                       {"--max_seq_length 512", attention, 0.5}};
  options[0].kind = options[2].kind = MemoryOptionKind::smaller_task;
  const MemoryBytes bytes = held({{activations, 10 * kGiB}, {attention, kGiB}});
  EXPECT_EQ(
      memory_advice(bytes, options),
      "--ulysses 8 (saves about 5.0 GiB of activations); or a smaller task: --max_seq_length 512 (saves "
      "about 9.0 GiB of activations)");
  options.erase(options.begin() + 1);
  EXPECT_THAT(memory_advice(bytes, options), StartsWith("a smaller task: --max_seq_length 512"));
  for (const MemoryOption& option : usual_memory_options())
    EXPECT_EQ(option.kind == MemoryOptionKind::smaller_task, option.option == "a shorter --max_seq_length");
}

TEST(MemoryAdvice, knows_a_way_out_for_every_category_that_can_be_large) {
  const auto first_word_for = [](MemoryCategory category) {
    return memory_advice(held({{category, kGiB}}), usual_memory_options());
  };
  EXPECT_THAT(first_word_for(activations), HasSubstr("--recompute full"));
  EXPECT_THAT(first_word_for(activations), HasSubstr("--offload_activations disk"));
  EXPECT_THAT(first_word_for(optimizer), HasSubstr("--zero 1"));
  EXPECT_THAT(first_word_for(gradients), HasSubstr("--zero 2"));
  EXPECT_THAT(first_word_for(parameters), HasSubstr("--zero 3"));
  EXPECT_THAT(first_word_for(tiles), HasSubstr("--tile_tokens"));
  EXPECT_THAT(first_word_for(attention), HasSubstr("--ulysses"));
  EXPECT_FALSE(first_word_for(communication).empty());
}

TEST(MemoryAdvice, the_message_counts_what_was_asked_for_as_well) {
  const std::string message = out_of_memory_message(
      "host", tiles, 6 * kGiB, held({{activations, 4 * kGiB}}),
      {{"--recompute full", activations, 0.5}, {"a smaller --tile_tokens", tiles, 0.5}});
  EXPECT_THAT(message, HasSubstr("asked for 6.0 GiB (6442450944 bytes) more for tiles"));
  EXPECT_THAT(message, HasSubstr("this rank holds activations 4.0 GiB."));
  EXPECT_THAT(message, Not(HasSubstr("gradients")));
  EXPECT_LT(message.find("--tile_tokens"), message.find("--recompute full"));
}

}  // namespace
}  // namespace trireme
