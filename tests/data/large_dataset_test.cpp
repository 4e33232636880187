// A set of more than 2^32 tokens in more than 2^33 bytes: what lies there is read, dealt and named by
// positions that 32 bits do not count. Its .bin is a sparse file, of zeros but for a few known tokens.
#include <fstream>
#include <map>
#include <numeric>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/held_out_split.h"
#include "trireme/data/packed_loader.h"
#include "trireme/data/sample_order.h"

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

constexpr int64_t kBillion = 1'000'000'000;
constexpr int64_t kTokenBytes = 2;
// The third begins beyond 2^31 tokens, the last beyond 2^32; the fourth is empty.
const std::vector<int64_t> kLengths{1'500'000'000, 1'400'000'000, 5, 0, 1'500'000'000, 7};
constexpr int64_t kThird = 29 * kBillion / 10, kLast = 44 * kBillion / 10 + 5, kTokens = kLast + 7;

// Position in the stream -> id; the others are 0.
std::map<int64_t, int64_t> known_tokens() {
  constexpr int64_t kTwo31 = int64_t{1} << 31, kTwo32 = int64_t{1} << 32;
  std::map<int64_t, int64_t> known;
  int64_t id = 101;
  for (const int64_t position : {kTwo31 - 1, kTwo31, kTwo31 + 1, kThird - 1, kTwo32 - 1, kTwo32, kTwo32 + 1})
    known[position] = id++;
  for (int64_t i = 0; i < 5; ++i) known[kThird + i] = 201 + i;
  for (int64_t i = 0; i < 7; ++i) known[kLast + i] = 301 + i;
  return known;
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// By hand from the format's description in Megatron-LM: uint16, a document a sequence.
std::string index_bytes() {
  std::string bytes("MMIDIDX\0\0", 9);
  append(bytes, uint64_t{1});
  append(bytes, uint8_t{8});
  append(bytes, static_cast<uint64_t>(kLengths.size()));
  append(bytes, static_cast<uint64_t>(kLengths.size() + 1));
  for (const int64_t length : kLengths) append(bytes, static_cast<int32_t>(length));
  int64_t pointer = 0;
  for (const int64_t length : kLengths) {
    append(bytes, pointer);
    pointer += length * kTokenBytes;
  }
  for (size_t document = 0; document <= kLengths.size(); ++document)
    append(bytes, static_cast<int64_t>(document));
  return bytes;
}

class LargeDataset : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path bin = folder_.write("set.bin", "");
    std::error_code error;
    std::filesystem::resize_file(bin, kTokens * kTokenBytes, error);
    if (error) GTEST_SKIP() << "no file of 9 GB can be made here: " << error.message();
    struct stat status {};
    ASSERT_EQ(::stat(bin.c_str(), &status), 0);
    if (status.st_blocks * int64_t{512} > int64_t{1} << 20)
      GTEST_SKIP() << "the file system has no sparse files: 9 GB would be written";
    std::fstream out(bin, std::ios::in | std::ios::out | std::ios::binary);
    for (const auto& [position, id] : known_tokens()) {
      std::string bytes;
      append(bytes, static_cast<uint16_t>(id));
      out.seekp(position * kTokenBytes).write(bytes.data(), kTokenBytes);
    }
    out.close();
    ASSERT_TRUE(out.good());
    folder_.write("set.idx", index_bytes());
    set_ = std::make_shared<const IndexedDataset>(folder_ / "set");
  }

  // A step of the row at `row`, by a loader that came there.
  TokenBatch batch_at(int64_t row, LoaderOptions options) const {
    options.shuffle = false;
    PackedLoader loader(set_, whole_set(*set_), options);
    Json state = loader.state();
    state["row"] = row;
    loader.restore(state);
    return loader.next().at(0);
  }

  const TemporaryFolder folder_;
  std::shared_ptr<const IndexedDataset> set_;
};

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

TEST_F(LargeDataset, borders_of_documents_are_where_the_lengths_say) {
  EXPECT_EQ(set_->tokens(), kTokens);
  EXPECT_GT(set_->tokens(), int64_t{1} << 32);
  ASSERT_EQ(set_->documents(), 6);
  EXPECT_EQ(set_->document_begin(2), kThird);
  EXPECT_EQ(set_->document_begin(5), kLast);
  EXPECT_EQ(set_->document_begin(6), kTokens);
  EXPECT_EQ(set_->document_begin(5) - set_->document_begin(4), kLengths[4]);
  EXPECT_EQ(set_->document_of(kThird - 1), 1);
  EXPECT_EQ(set_->document_of(kThird), 2);
  EXPECT_EQ(set_->document_of(kLast - 1), 4);
  EXPECT_EQ(set_->document_of(kLast), 5);
}

TEST_F(LargeDataset, tokens_are_read_where_they_lie) {
  const std::map<int64_t, int64_t> known = known_tokens();
  for (const auto& [position, id] : known) {
    std::vector<int64_t> read(3), expected;
    const int64_t begin = std::min(position - 1, kTokens - 3);
    for (int64_t at = begin; at < begin + 3; ++at) {
      const auto found = known.find(at);
      expected.push_back(found == known.end() ? 0 : found->second);
    }
    set_->read(begin, 3, read.data());
    EXPECT_EQ(read, expected) << "around token " << position;
  }
}

TEST_F(LargeDataset, an_id_outside_the_vocabulary_names_its_far_place) {
  std::vector<int64_t> read(7);
  EXPECT_THAT(message_of<DataError>([&] { set_->read(kLast, 7, read.data(), 307); }),
              AllOf(HasSubstr("document 5, token 6 (token 4400000011 of the set)"), HasSubstr("id 307")));
}

TEST_F(LargeDataset, a_window_over_a_border_beyond_2_to_the_31_is_cut_there) {
  LoaderOptions options;
  options.packing.kind = Packing::documents;
  options.sequence_tokens = 1024;
  const int64_t row = kThird / 1024, border = kThird % 1024;
  ASSERT_GT(border, 0);
  std::vector<int64_t> tokens(1024, 0), targets(1024, 0);
  tokens[static_cast<size_t>(border) - 1] = targets[static_cast<size_t>(border) - 2] = 104;
  for (int64_t i = 0; i < 5; ++i) tokens[static_cast<size_t>(border + i)] = 201 + i;
  for (int64_t i = 1; i < 5; ++i) targets[static_cast<size_t>(border + i) - 1] = 201 + i;
  targets[static_cast<size_t>(border) - 1] = targets[static_cast<size_t>(border) + 4] = kIgnoredLabel;

  const TokenBatch whole = batch_at(row, options);
  EXPECT_EQ(values(whole.tokens), tokens);
  EXPECT_EQ(values(whole.targets), targets);
  EXPECT_THAT(whole.documents.at(0).cu_seqlens(), ElementsAre(0, border, border + 5, 1024));

  options.ulysses = 2;
  std::vector<at::Tensor> halves, target_halves;
  for (options.sp_rank = 0; options.sp_rank < 2; ++options.sp_rank) {
    const TokenBatch half = batch_at(row, options);
    halves.push_back(half.tokens);
    target_halves.push_back(half.targets);
  }
  EXPECT_EQ(values(at::cat(halves, 1)), tokens);
  EXPECT_EQ(values(at::cat(target_halves, 1)), targets);
}

TEST_F(LargeDataset, without_packing_a_document_beyond_2_to_the_31_has_its_own_row) {
  LoaderOptions options;
  options.packing.kind = Packing::none;
  options.sequence_tokens = 1024;
  options.pad_token_id = 9;
  const auto pieces = [](int64_t length) { return (length + 1023) / 1024; };
  const TokenBatch third = batch_at(pieces(kLengths[0]) + pieces(kLengths[1]), options);
  std::vector<int64_t> tokens(1024, 9), targets(1024, kIgnoredLabel);
  std::iota(tokens.begin(), tokens.begin() + 5, 201);
  std::iota(targets.begin(), targets.begin() + 4, 202);
  EXPECT_EQ(values(third.tokens), tokens);
  EXPECT_EQ(values(third.targets), targets);
  // And the piece before: the end of the second document.
  const TokenBatch before = batch_at(pieces(kLengths[0]) + pieces(kLengths[1]) - 1, options);
  const size_t rest = static_cast<size_t>(kLengths[1] % 1024);
  EXPECT_EQ(values(before.tokens)[rest - 1], 104);
  EXPECT_EQ(values(before.tokens)[rest], 9);
}

TEST_F(LargeDataset, single_tokens_are_rows_that_32_bits_do_not_number) {
  LoaderOptions options;
  options.packing.kind = Packing::concat;
  options.sequence_tokens = 1;
  for (const int64_t position : {(int64_t{1} << 32) + 1, kLast + 2}) {
    const TokenBatch batch = batch_at(position, options);
    EXPECT_EQ(batch.tokens.item<int64_t>(), known_tokens().at(position));
  }
  // An epoch's order of so many reaches all of them.
  const SampleOrder order(kTokens - 1, 5, 0);
  int64_t far = 0;
  std::map<int64_t, int> times;
  for (int64_t i = 0; i < 4000; ++i) {
    const int64_t row = order[kLast - i];
    ASSERT_TRUE(row >= 0 && row < kTokens - 1);
    ++times[row];
    far += row > (int64_t{1} << 31) ? 1 : 0;
  }
  EXPECT_EQ(times.size(), 4000U);
  EXPECT_NEAR(static_cast<double>(far) / 4000, 1 - 2147483648.0 / static_cast<double>(kTokens), 0.05);
}

}  // namespace
}  // namespace trireme
