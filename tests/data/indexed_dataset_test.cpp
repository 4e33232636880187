// The files are Megatron-LM's, byte for byte, and a damaged one is refused with its position.
#include "trireme/data/indexed_dataset.h"

#include <numeric>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset_writer.h"

#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/file_operations.h"
#include "tests/support/small_files.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

std::vector<int64_t> all_tokens(const IndexedDataset& set) {
  std::vector<int64_t> tokens(static_cast<size_t>(set.tokens()));
  set.read(0, set.tokens(), tokens.data());
  return tokens;
}

void write_three_documents(const std::filesystem::path& prefix, int64_t vocab_size) {
  IndexedDatasetWriter writer(prefix, vocab_size);
  writer.add_document(std::vector<int32_t>{1, 2, 258});
  writer.add_document(std::vector<int32_t>{});
  writer.add_document(std::vector<int32_t>{7});
  writer.finish();
}

// Written by hand from the format's description in Megatron-LM.
const std::string kIndexBytes(
    "MMIDIDX\0\0"
    "\1\0\0\0\0\0\0\0"  // version
    "\10"               // uint16
    "\3\0\0\0\0\0\0\0"  // sequences
    "\4\0\0\0\0\0\0\0"  // document indices
    "\3\0\0\0"
    "\0\0\0\0"
    "\1\0\0\0"  // sizes
    "\0\0\0\0\0\0\0\0"
    "\6\0\0\0\0\0\0\0"
    "\6\0\0\0\0\0\0\0"  // pointers
    "\0\0\0\0\0\0\0\0"
    "\1\0\0\0\0\0\0\0"
    "\2\0\0\0\0\0\0\0"
    "\3\0\0\0\0\0\0\0",
    9 + 8 + 1 + 8 + 8 + 12 + 24 + 32);
const std::string kBinBytes("\1\0\2\0\2\1\7\0", 8);

TEST(IndexedDataset, files_are_megatrons_byte_for_byte) {
  const TemporaryFolder folder;
  write_three_documents(folder / "set", 300);
  EXPECT_EQ(bytes_of(folder / "set.idx"), kIndexBytes);
  EXPECT_EQ(bytes_of(folder / "set.bin"), kBinBytes);
  EXPECT_EQ(folder.files(), 2);
}

// A prompt of two tokens and its completion, a document without a prompt, one that is a prompt alone.
const std::string kPromptsIndexBytes(
    "MMIDIDX\0\0"
    "\1\0\0\0\0\0\0\0"  // version
    "\10"               // uint16
    "\4\0\0\0\0\0\0\0"  // sequences
    "\4\0\0\0\0\0\0\0"  // document indices
    "\2\0\0\0"
    "\1\0\0\0"
    "\1\0\0\0"
    "\1\0\0\0"  // sizes
    "\0\0\0\0\0\0\0\0"
    "\4\0\0\0\0\0\0\0"
    "\6\0\0\0\0\0\0\0"
    "\10\0\0\0\0\0\0\0"  // pointers
    "\0\0\0\0\0\0\0\0"
    "\2\0\0\0\0\0\0\0"
    "\3\0\0\0\0\0\0\0"
    "\4\0\0\0\0\0\0\0"  // document indices
    "\1\0\0\1",         // modes
    9 + 8 + 1 + 8 + 8 + 16 + 32 + 32 + 4);

TEST(IndexedDataset, a_prompt_is_a_sequence_of_its_document_whose_mode_says_so) {
  const TemporaryFolder folder;
  {
    IndexedDatasetWriter writer(folder / "set", 300);
    writer.add_document(std::vector<int32_t>{1, 2, 258}, 2);
    writer.add_document(std::vector<int32_t>{7});
    writer.add_document(std::vector<int32_t>{8}, 1);
    EXPECT_EQ(writer.documents(), 3);
    EXPECT_EQ(writer.tokens(), 5);
    writer.finish();
  }
  EXPECT_EQ(bytes_of(folder / "set.idx"), kPromptsIndexBytes);
  const IndexedDataset set(folder / "set");
  EXPECT_EQ(set.documents(), 3);
  EXPECT_EQ(all_tokens(set), (std::vector<int64_t>{1, 2, 258, 7, 8}));
  EXPECT_EQ(set.document_begins(0, 4), (std::vector<int64_t>{0, 3, 4, 5}));
  for (const auto& [token, prompt] : {std::pair{0, 1}, {1, 1}, {2, 0}, {3, 0}, {4, 1}})
    EXPECT_EQ(set.prompts().tokens_in({token, token + 1}), prompt) << token;
}

TEST(IndexedDataset, modes_of_many_sequences_are_their_own) {
  constexpr int64_t kDocumentsWritten = 20'000;
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "set", 300);
  for (int64_t i = 0; i < kDocumentsWritten; ++i) writer.add_document(std::vector<int32_t>{1, 2, 3}, i % 3);
  writer.finish();
  const IndexedDataset set(folder / "set");
  for (int64_t i = 0; i < kDocumentsWritten; ++i)
    ASSERT_EQ(set.prompts().tokens_in({3 * i, 3 * i + 3}), i % 3) << i;
}

TEST(IndexedDataset, a_mode_that_is_none_is_named) {
  const TemporaryFolder folder;
  write_three_documents(folder / "set", 300);
  folder.write("set.idx", kIndexBytes + std::string("\0\0\2", 3));
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset(folder / "set"); }),
              AllOf(HasSubstr("offset 104: sequence 2 has the mode 2"), HasSubstr("1 (prompt)")));
}

TEST(IndexedDataset, reads_files_written_by_hand) {
  const TemporaryFolder folder;
  folder.write("set.idx", kIndexBytes);
  folder.write("set.bin", kBinBytes);
  EXPECT_TRUE(is_indexed_dataset(folder / "set"));
  EXPECT_FALSE(is_indexed_dataset(folder / "other"));
  const IndexedDataset set(folder / "set.bin");  // either file's name will do
  EXPECT_EQ(all_tokens(set), (std::vector<int64_t>{1, 2, 258, 7}));
  EXPECT_EQ(set.documents(), 3);
  EXPECT_EQ(set.document_begins(0, 4), (std::vector<int64_t>{0, 3, 3, 4}));
  EXPECT_EQ(set.document_of(2), 0);
  EXPECT_EQ(set.document_of(3), 2);
}

TEST(IndexedDataset, token_width_follows_megatrons_rule) {
  EXPECT_EQ(token_type_for(65499), TokenType::uint16);
  EXPECT_EQ(token_type_for(65500), TokenType::int32);
  const TemporaryFolder folder;
  write_three_documents(folder / "wide", 70000);
  EXPECT_EQ(std::filesystem::file_size(folder / "wide.bin"), 16);
  EXPECT_EQ(all_tokens(IndexedDataset(folder / "wide")), (std::vector<int64_t>{1, 2, 258, 7}));
}

TEST(IndexedDataset, what_passes_the_writers_buffer_comes_back) {
  const TemporaryFolder folder;
  std::vector<int32_t> document(700001);
  std::iota(document.begin(), document.end(), 5);
  {
    IndexedDatasetWriter writer(folder / "deep/er/set", 1000000);
    for (int i = 0; i < 5; ++i) writer.add_document(document);
    writer.finish();
  }
  const IndexedDataset set(folder / "deep/er/set");
  ASSERT_EQ(set.tokens(), 5 * 700001);
  std::vector<int64_t> read(700001);
  for (int i = 0; i < 5; ++i) {
    set.read(i * 700001, 700001, read.data());
    ASSERT_TRUE(std::equal(read.begin(), read.end(), document.begin()));
  }
}

TEST(IndexedDataset, every_truncation_of_either_file_is_refused) {
  const TemporaryFolder folder;
  for (size_t length = 0; length < kIndexBytes.size(); ++length) {
    folder.write("set.idx", kIndexBytes.substr(0, length));
    folder.write("set.bin", kBinBytes);
    EXPECT_THAT(message_of<DataError>([&] { IndexedDataset set(folder / "set"); }), HasSubstr("set.idx"))
        << length;
  }
  folder.write("set.idx", kIndexBytes);
  for (size_t length = 0; length < kBinBytes.size(); ++length) {
    folder.write("set.bin", kBinBytes.substr(0, length));
    EXPECT_THAT(message_of<DataError>([&] { IndexedDataset set(folder / "set"); }),
                AllOf(HasSubstr("set.bin"), HasSubstr("offset")))
        << length;
  }
  folder.write("set.bin", kBinBytes + "x");
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset set(folder / "set"); }), HasSubstr("9 bytes"));
}

// Under a memory map each of these was a SIGBUS.
TEST(IndexedDataset, a_file_that_shrinks_or_changes_after_it_was_opened_is_named) {
  const TemporaryFolder folder;
  for (const char* name : {"set.bin", "set.idx"}) {
    write_three_documents(folder / "set", 300);
    const IndexedDataset set(folder / "set");
    std::filesystem::resize_file(folder / name, 0);
    EXPECT_THAT(message_of<DataError>([&] {
                  all_tokens(set);
                  set.document_of(3);
                }),
                AllOf(HasSubstr(name), HasSubstr("cut or replaced")));
  }
  write_three_documents(folder / "set", 300);
  const IndexedDataset set(folder / "set");
  std::string changed = kIndexBytes;
  changed[46 + 16] = '\x7f';  // where the last sequence begins
  folder.write("set.idx", changed);
  EXPECT_THAT(message_of<DataError>([&] { set.document_begin(2); }),
              AllOf(HasSubstr("set.idx"), HasSubstr("changed")));
}

TEST(IndexedDataset, document_begins_are_read_in_one_go) {
  const TemporaryFolder folder;
  std::vector<int64_t> expected;
  {
    IndexedDatasetWriter writer(folder / "set", 300);
    for (int i = 0; i < 20'000; ++i) {
      expected.push_back(writer.tokens());
      writer.add_document(std::vector<int32_t>(i == 19'000 ? 77 : static_cast<size_t>(i % 5), 1));
    }
    expected.push_back(writer.tokens());
    writer.finish();
  }
  const IndexedDataset set(folder / "set");
  EXPECT_EQ(set.document_begins(0, 20'001), expected);
  EXPECT_EQ(set.document_begins(8'190, 5),
            std::vector<int64_t>(expected.begin() + 8'190, expected.begin() + 8'195));
  EXPECT_EQ(set.longest_document(), 77);
}

TEST(IndexedDataset, damage_is_named_with_its_offset) {
  struct Case {
    size_t at;
    std::string bytes;
    const char* says;
  };
  const std::vector<Case> cases{
      {0, "X", "offset 0: not the index"},
      {9, "\2", "offset 9: format version 2"},
      {17, "\6", "offset 17: token type code 6"},
      {18, "\xff\xff\xff\xff\xff\xff\xff\x7f", "offset 18"},
      {26, "\xff\xff\xff\xff\xff\xff\xff\xff", "offset 18"},
      {34, "\xff\xff\xff\xff", "offset 34: sequence 0 has -1 tokens"},
      {34, "\2", "offset 54: sequence 1 starts at byte 6, but the sizes of those before it add up to 4"},
      {54, "\x80", "offset 54: sequence 1 is bytes [128"},
      {61, "\x80", "offset 54: sequence 1 is bytes [-"},
      {70, "\1", "offset 70: document index 0 is 1"},
      {86, "" /* a NUL */, "offset 86: document index 2 is 0"},
      {94, "\2", "offset 94: document index 3 is 2"},
  };
  const TemporaryFolder folder;
  folder.write("set.bin", kBinBytes);
  for (const Case& c : cases) {
    std::string bytes = kIndexBytes;
    bytes.replace(c.at, std::max<size_t>(1, c.bytes.size()),
                  c.bytes.empty() ? std::string(1, '\0') : c.bytes);
    folder.write("set.idx", bytes);
    EXPECT_THAT(message_of<DataError>([&] { IndexedDataset set(folder / "set"); }), HasSubstr(c.says));
  }
}

TEST(IndexedDataset, a_set_without_tokens_is_refused_both_ways) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<DataError>([&] {
                IndexedDatasetWriter writer(folder / "set", 300);
                writer.add_document({});
                writer.finish();
              }),
              HasSubstr("no document has a token"));
  EXPECT_EQ(folder.files(), 0);
  folder.write("set.idx", std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 34) +
                              std::string(8, '\0'));
  folder.write("set.bin", "");
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset set(folder / "set"); }),
              HasSubstr("holds no tokens"));
}

TEST(IndexedDataset, a_path_at_which_the_system_cannot_look_is_named) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("loop.bin", folder / "loop.bin");
  EXPECT_THAT(message_of<DataError>([&] { is_indexed_dataset(folder / "loop"); }),
              AllOf(HasSubstr((folder / "loop.bin").string()), HasSubstr("symbolic links")));
}

TEST(IndexedDataset, missing_files_are_named) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<DataError>([&] { IndexedDataset set(folder / "none"); }), HasSubstr("none.idx"));
}

TEST(IndexedDataset, an_id_outside_the_vocabulary_names_its_document) {
  const TemporaryFolder folder;
  write_three_documents(folder / "set", 300);
  const IndexedDataset set(folder / "set");
  std::vector<int64_t> out(4);
  set.read(0, 4, out.data(), 259);
  EXPECT_THAT(message_of<DataError>([&] { set.read(1, 3, out.data(), 258); }),
              AllOf(HasSubstr("document 0, token 2"), HasSubstr("id 258"), HasSubstr("258 ids"),
                    HasSubstr("another tokenizer than the model's, or tokens were added"),
                    HasSubstr("model.resize_token_embeddings(len(tokenizer))")));
  EXPECT_THAT(message_of<DataError>([&] {
                IndexedDatasetWriter writer(folder / "other", 300);
                writer.add_document(std::vector<int32_t>{300});
              }),
              AllOf(HasSubstr("token id 300"), HasSubstr("resize_token_embeddings(len(tokenizer))")));
}

TEST(IndexedDatasetWriter, of_a_token_type_takes_the_ids_that_it_holds) {
  const TemporaryFolder folder;
  const std::pair<TokenType, int32_t> largest_ids[] = {{TokenType::uint16, 65'535},
                                                       {TokenType::int32, 2'147'483'647}};
  for (const auto& [type, largest] : largest_ids) {
    IndexedDatasetWriter writer(folder / "set", type);
    writer.add_document(std::vector<int32_t>{0, largest});
    writer.finish();
    const IndexedDataset set(folder / "set");
    EXPECT_EQ(set.token_type(), type);
    EXPECT_EQ(all_tokens(set), (std::vector<int64_t>{0, largest}));
  }
  IndexedDatasetWriter narrow(folder / "narrow", TokenType::uint16);
  EXPECT_THAT(message_of<DataError>([&] { narrow.add_document(std::vector<int32_t>{65'536}); }),
              HasSubstr("token id 65536"));
}

TEST(IndexedDatasetWriter, a_folder_is_no_prefix_of_two_files) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { IndexedDatasetWriter(folder.path() / "", 10); }),
              HasSubstr("expected the PREFIX of two files, such as"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(IndexedDatasetWriter, a_failed_write_leaves_nothing_and_keeps_the_older_set) {
  const TemporaryFolder folder;
  write_three_documents(folder / "set", 300);
  EXPECT_THAT(message_of<DataError>([&] {
                const testing::SmallFiles full(1 << 20);
                IndexedDatasetWriter writer(folder / "set", 300);
                writer.add_document(std::vector<int32_t>(3 << 20, 1));
                writer.finish();
              }),
              HasSubstr("cannot be written"));
  EXPECT_EQ(folder.files(), 2);
  EXPECT_EQ(bytes_of(folder / "set.idx"), kIndexBytes);
  EXPECT_EQ(bytes_of(folder / "set.bin"), kBinBytes);
}

TEST(IndexedDatasetWriter, syncs_both_files_before_either_has_its_name_and_names_the_index_last) {
  const TemporaryFolder folder;
  const testing::FileOperations operations;
  write_three_documents(folder / "set", 300);
  const std::string bin = cat("set.bin.partial-", ::getpid()), idx = cat("set.idx.partial-", ::getpid());
  EXPECT_THAT(operations.in(folder.path().string()),
              ::testing::ElementsAre("write " + bin, "sync " + bin, "write " + idx, "sync " + idx,
                                     "rename " + bin + " set.bin", "rename " + idx + " set.idx", "sync ."));
}

TEST(IndexedDatasetWriter, nothing_has_the_final_name_before_finish) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "set", 300);
  writer.add_document(std::vector<int32_t>{1});
  EXPECT_FALSE(std::filesystem::exists(folder / "set.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder / "set.idx"));
  writer.finish();
  EXPECT_TRUE(is_indexed_dataset(folder / "set"));
}

}  // namespace
}  // namespace trireme
