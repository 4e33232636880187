#include "trireme/base/safetensors.h"

#include <bit>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors_writer.h"

#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/small_files.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// The message of the DataError that `action` throws.
template <typename Action>
std::string data_error(const Action& action) {
  return testing::message_of<DataError>(action);
}

class Safetensors : public ::testing::Test {
 protected:
  fs::path write_raw(const std::string& content, const std::string& name = "model.safetensors") const {
    return folder_.write(name, content);
  }
  // Length, header and `data_bytes` bytes of data.
  fs::path write_file(const std::string& header, size_t data_bytes,
                      const std::string& name = "model.safetensors") const {
    const uint64_t length = header.size();
    std::string content(reinterpret_cast<const char*>(&length), 8);
    return write_raw(content + header + std::string(data_bytes, '\1'), name);
  }
  static std::string error_of(const fs::path& file) {
    return data_error([&] { const SafetensorsFile opened(file); });
  }

  TemporaryFolder folder_;
};

fs::path by_python() {
  return testing::source_folder() / "tests/base/fixtures/by_python.safetensors";
}

template <typename T>
std::vector<T> values(const SafetensorsEntry& entry) {
  std::vector<T> result(static_cast<size_t>(entry.elements));
  entry.read(0, result.data(), entry.bytes);
  return result;
}

TEST_F(Safetensors, a_file_written_by_python_is_read_as_it_is) {
  const SafetensorsFile file(by_python());
  EXPECT_EQ(file.entries().size(), 6U);
  EXPECT_EQ(file.at("matrix").dtype, "F32");
  EXPECT_EQ(file.at("matrix").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values<float>(file.at("matrix")), (std::vector<float>{0, 0.25F, 0.5F, 0.75F, 1, 1.25F}));
  EXPECT_EQ(values<uint16_t>(file.at("half")), (std::vector<uint16_t>{0x3F80, 0xC020}));
  EXPECT_EQ(values<int64_t>(file.at("ids")), (std::vector<int64_t>{1, -100, int64_t{1} << 40}));
  EXPECT_EQ(values<uint8_t>(file.at("flags")), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(file.at("nothing").elements, 0);
  EXPECT_EQ(values<double>(file.at("scalar")), std::vector<double>{2.5});
  EXPECT_EQ(file.metadata().at("note"), "made by Python");
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST_F(Safetensors, what_is_written_is_read_back_bit_for_bit) {
  const std::vector<float> weights{1.5F, -0.0F, 3e-40F, 7};
  const std::vector<int64_t> ids{-1, 5};
  {
    SafetensorsWriter writer(folder_ / "a.safetensors",
                             {{"w", "F32", {2, 2}}, {"empty", "F32", {0}}, {"ids", "I64", {2}}});
    writer.write("w", weights.data(), 8);
    writer.write("w", weights.data() + 2, 8);
    writer.write("ids", ids.data(), 16);
    EXPECT_FALSE(fs::exists(folder_ / "a.safetensors"))
        << "half a file must not have the name of a whole one";
    writer.finish();
  }
  const SafetensorsFile file(folder_ / "a.safetensors");
  const auto bits = values<uint32_t>(file.at("w"));
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(bits[i], std::bit_cast<uint32_t>(weights[i]));
  EXPECT_EQ(values<int64_t>(file.at("ids")), ids);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("w").offset % 8, 0);
}

TEST_F(Safetensors, an_unfinished_file_leaves_nothing_behind) {
  {
    SafetensorsWriter writer(folder_ / "a.safetensors", {{"w", "F32", {4}}});
    EXPECT_THROW(writer.finish(), InternalError);
  }
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Safetensors, a_full_disk_is_an_error_with_the_bytes_needed_and_leaves_the_old_file) {
  write_raw("the previous file", "a.safetensors");
  const std::string message = data_error([&] {
    const testing::SmallFiles limit(4096);
    const std::vector<float> data(4096);
    SafetensorsWriter writer(folder_ / "a.safetensors", {{"w", "F32", {4096}}});
    writer.write("w", data.data(), 4096 * 4);
    writer.finish();
  });
  EXPECT_THAT(message, AllOf(HasSubstr("a.safetensors"), HasSubstr("(ulimit -f); the file needs 164"),
                             HasSubstr("bytes")));
  EXPECT_EQ(fs::file_size(folder_ / "a.safetensors"), 17U);
  EXPECT_EQ(folder_.files(), 1U) << "no partial file may stay";
}

TEST_F(Safetensors, a_folder_that_cannot_be_written_is_named) {
  EXPECT_THAT(data_error([&] { const SafetensorsWriter writer(folder_ / "absent" / "a.safetensors", {}); }),
              HasSubstr("absent/a.safetensors: cannot open"));
}

TEST_F(Safetensors, damage_of_the_header_is_told_with_its_likely_cause) {
  EXPECT_THAT(error_of(folder_ / "absent.safetensors"), HasSubstr("absent.safetensors: cannot be opened"));
  EXPECT_THAT(error_of(write_raw("")), HasSubstr("0 bytes long"));
  EXPECT_THAT(error_of(write_raw("1234567")), HasSubstr("interrupted download"));
  EXPECT_THAT(error_of(write_raw("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 999\n")),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(error_of(write_raw("<!DOCTYPE html><html>please log in")), HasSubstr("web page"));
  EXPECT_THAT(error_of(write_raw(std::string("\x40\0\0\0\0\0\0\0{\"w\":", 13))),
              HasSubstr("header of 64 bytes, but the file has 13"));
  EXPECT_THAT(error_of(write_raw(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10))),
              HasSubstr("interrupted download"));
  EXPECT_THAT(error_of(write_file("{\"w\":", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(write_file("{\"w\":1e999}", 0)), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(write_file("[1]", 0)), HasSubstr("byte 8 is not '{'"));
}

TEST_F(Safetensors, a_tensor_that_does_not_fit_is_named_with_its_offsets) {
  const auto one = [&](const std::string& entry, size_t data_bytes) {
    return error_of(write_file("{\"w\":" + entry + "}", data_bytes));
  };
  EXPECT_EQ(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8), "no error");
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 7),
              AllOf(HasSubstr("'w'"), HasSubstr("[0, 8]"), HasSubstr("interrupted download")));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 9),
              HasSubstr("1 bytes follow the last tensor"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8), HasSubstr("F32 [3] needs 12"));
  EXPECT_THAT(one(R"({"dtype":"Q4","shape":[2],"data_offsets":[0,8]})", 8),
              HasSubstr("unknown dtype \"Q4\""));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", 8),
              HasSubstr("is -2; expected a whole number"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8), HasSubstr("[8, 0]"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", 8),
              HasSubstr("expected [begin, end]"));
  EXPECT_THAT(one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", 8),
              HasSubstr("more bytes than 64 bits"));
  EXPECT_THAT(one(R"({"shape":[2],"data_offsets":[0,8]})", 8), HasSubstr("expected an object with dtype"));
  EXPECT_THAT(one("7", 8), HasSubstr("expected an object with dtype"));
}

// A header of 100,000 brackets ended the process by its stack.
TEST_F(Safetensors, a_header_nested_deeply_is_refused) {
  for (const size_t depth : {101, 100'000}) {
    const std::string deep = std::string(depth, '[') + std::string(depth, ']');
    for (const std::string& header : {"{\"w\":" + deep + "}", "{\"__metadata__\":{\"a\":" + deep + "}}"})
      EXPECT_THAT(error_of(write_file(header, 0)),
                  AllOf(HasSubstr("model.safetensors: the header"), HasSubstr("more than 100 deep")));
  }
}

TEST_F(Safetensors, a_shape_whose_extents_overflow_is_refused_even_beside_a_zero) {
  EXPECT_THAT(error_of(write_file(
                  R"({"w":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})", 0)),
              HasSubstr("more bytes than 64 bits"));
}

TEST_F(Safetensors, a_quoted_name_or_value_of_a_megabyte_is_cut) {
  const std::string name(1'000'000, 'n');
  EXPECT_LT(error_of(write_file("{\"" + name + "\":7}", 0)).size(), 1000U);
  EXPECT_LT(error_of(write_file("{\"w\":[\"" + name + "\"]}", 0)).size(), 1000U);
}

TEST_F(Safetensors, a_file_that_shrinks_while_it_is_read_is_named) {
  const fs::path path = write_file(R"({"w":{"dtype":"U8","shape":[8192],"data_offsets":[0,8192]}})", 8192);
  const SafetensorsFile file(path);
  fs::resize_file(path, 4096);
  std::string bytes(8192, ' ');
  EXPECT_THAT(data_error([&] { file.at("w").read(0, bytes.data(), 8192); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("ends at byte 4096")));
}

TEST_F(Safetensors, overlaps_gaps_and_duplicates_are_refused) {
  const auto two = [&](const std::string& first, const std::string& second, const std::string& name = "b") {
    return error_of(write_file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first + R"(},")" + name +
                                   R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}",
                               8));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]"), "no error");
  EXPECT_EQ(two("[4,8]", "[0,4]"), "no error") << "the header's order is free";
  EXPECT_THAT(two("[0,4]", "[2,6]"), HasSubstr("overlap"));
  EXPECT_THAT(two("[0,4]", "[0,4]"), HasSubstr("overlap"));
  EXPECT_THAT(two("[1,5]", "[5,9]"), HasSubstr("past the 8 bytes"));
  EXPECT_THAT(two("[0,4]", "[4,8]", "a"), HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(error_of(write_file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6)),
              HasSubstr("gap"));
}

TEST_F(Safetensors, a_file_cut_anywhere_is_refused) {
  const std::string whole = testing::bytes_of(by_python());
  ASSERT_EQ(error_of(write_raw(whole)), "no error");
  for (size_t bytes = 0; bytes < whole.size(); bytes += 3)
    EXPECT_NE(error_of(write_raw(whole.substr(0, bytes))), "no error") << "cut to " << bytes << " bytes";
}

TEST_F(Safetensors, a_header_with_any_byte_changed_is_read_or_refused_but_never_believed_beyond_the_file) {
  const std::string whole = testing::bytes_of(by_python());
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  int refused = 0;
  for (size_t at = 0; at < 8 + header; at += 3) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 7)));
    const fs::path path = write_raw(damaged);
    try {
      const SafetensorsFile file(path);
      int64_t total = 0;
      for (const auto& [name, entry] : file.entries()) total += entry.bytes;
      EXPECT_EQ(total, static_cast<int64_t>(whole.size() - 8 - header)) << "byte " << at;
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 40);
}

TEST_F(Safetensors, a_set_is_one_file_or_the_shards_of_its_index) {
  EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }),
              HasSubstr("expected model.safetensors or"));
  write_file(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, "model-1.safetensors");
  write_file(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2, "model-2.safetensors");
  const std::string index = "model.safetensors.index.json";
  write_raw(R"({"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})", index);
  {
    const SafetensorsSet set(folder_.path());
    EXPECT_EQ(set.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(set.at("b").bytes, 2);
    EXPECT_THAT(data_error([&] { set.at("c"); }), HasSubstr("tensor 'c' is missing"));
  }
  write_raw(R"({"weight_map":{"a":"model-1.safetensors","c":"model-2.safetensors"}})", index);
  EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }),
              AllOf(HasSubstr("model-2.safetensors"), HasSubstr("tensor 'c' is missing")));
  write_raw(R"({"weight_map":{"a":"model-3.safetensors"}})", index);
  EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }),
              HasSubstr("model-3.safetensors: this shard is missing"));
  write_raw(R"({"weight_map":{"a":"../model-1.safetensors"}})", index);
  EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }),
              HasSubstr("expected a file name"));
  for (const char* name : {"/etc/passwd", "..", "model-1.safetensors\\u0000x"}) {
    write_raw(cat("{\"weight_map\":{\"a\":\"", name, "\"}}"), index);
    EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }),
                AllOf(HasSubstr(index), HasSubstr("expected a file name")));
  }
  write_raw(R"({"weights":{}})", index);
  EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }), HasSubstr("weight_map"));
  write_raw(R"({"weight_map":{"a":"model-1.safetensors","a":"model-2.safetensors"}})", index);
  EXPECT_THAT(data_error([&] { const SafetensorsSet set(folder_.path()); }),
              AllOf(HasSubstr(index), HasSubstr("\"a\" is there twice")));
}

}  // namespace
}  // namespace trireme
