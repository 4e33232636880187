// What a manifest and a state may say; a checkpoint from elsewhere is a file from outside.
#include "trireme/train/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"
#include "trireme/train/trainer_state.h"

#include "tests/support/error_message.h"
#include "tests/support/file_bytes.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

class Manifest : public ::testing::Test {
 protected:
  Manifest() {
    for (const char* name :
         {"config.json", "trainer_state.json", "rank-00000.safetensors", "rank-00001.safetensors"})
      add(name, "{}");
    add("model.safetensors.index.json",
        R"({"weight_map": {"a": "rank-00000.safetensors", "b": "rank-00001.safetensors"}})");
    manifest_.step = 40;
    manifest_.ranks = 4;  // of two units
    write_manifest(dir(), manifest_);
  }

  fs::path dir() const { return folder_ / "step-40"; }
  void add(const std::string& name, const std::string& bytes) {
    manifest_.files[name] = describe_file(folder_.write("step-40/" + name, bytes));
  }
  int64_t bytes_of_all() const {
    int64_t bytes = 0;
    for (const auto& [name, file] : manifest_.files) bytes += file.bytes;
    return bytes;
  }
  // What reading says after one value was changed; a null removes it.
  std::string changed(const std::string& pointer, const Json& value) const {
    Json json = read_json(dir() / "manifest.json");
    const Json::json_pointer at(pointer);
    if (value.is_null())
      json[at.parent_pointer()].erase(at.back());
    else
      json[at] = value;
    const fs::path copy = folder_ / "copy" / "step-40";
    fs::remove_all(copy);
    fs::create_directories(copy.parent_path());
    fs::copy(dir(), copy);
    folder_.write("copy/step-40/manifest.json", json.dump());
    return message_of<DataError>([&] { read_manifest(copy); });
  }

  TemporaryFolder folder_;
  CheckpointManifest manifest_;
};

TEST_F(Manifest, is_read_back_as_it_was_written) {
  EXPECT_EQ(verify_checkpoint(dir()), bytes_of_all());
  EXPECT_EQ(verify_checkpoint(dir() / ""), bytes_of_all()) << "with a slash at its end";
  const CheckpointManifest read = read_manifest(dir());
  EXPECT_EQ(read.step, 40);
  EXPECT_EQ(read.ranks, 4);
  EXPECT_EQ(read.chunk_bytes, kChunkBytes);
  EXPECT_EQ(read.files.size(), 5U);
}

// Another run's shard was loaded so.
TEST_F(Manifest, names_files_of_its_folder_alone) {
  const Json entry = {{"bytes", 2}, {"xxh3", {"0123456789abcdef"}}};
  for (const std::string& name : std::vector<std::string>{
           "/runs/other/rank-00001.safetensors", "../step-20/x", "..", ".", "", "a/b", std::string("a\0b", 3),
           "manifest.json", "additional_chat_templates", "additional_chat_templates/a.json",
           "additional_chat_templates/../a.jinja", "additional_chat_templates/a/b.jinja",
           "/additional_chat_templates/a.jinja"}) {
    Json files = read_json(dir() / "manifest.json")["files"];
    files[name] = entry;
    EXPECT_THAT(changed("/files", files),
                AllOf(HasSubstr("manifest.json"), HasSubstr("names of files in this folder")))
        << name;
  }
}

TEST_F(Manifest, may_name_the_tokenizers_further_chat_templates) {
  add("additional_chat_templates/tool_use.jinja", "{{ tools }}");
  write_manifest(dir(), manifest_);
  EXPECT_EQ(read_manifest(dir()).files.size(), 6U);
  EXPECT_EQ(verify_checkpoint(dir()), bytes_of_all());
  folder_.write("step-40/additional_chat_templates/tool_use.jinja", "{{ torn! }}");
  EXPECT_THAT(message_of<DataError>([&] { verify_checkpoint(dir()); }), HasSubstr("tool_use.jinja"));
}

TEST_F(Manifest, lists_what_every_checkpoint_has_and_its_shards_without_a_gap) {
  const std::string files = "/files/";
  EXPECT_THAT(changed("/files", nullptr), HasSubstr("\"files\" is missing"));
  EXPECT_THAT(changed("/files", Json::object()), HasSubstr("lacks config.json"));
  EXPECT_THAT(changed(files + "trainer_state.json", nullptr), HasSubstr("lacks trainer_state.json"));
  EXPECT_THAT(changed(files + "model.safetensors.index.json", nullptr),
              HasSubstr("lacks model.safetensors.index.json"));
  EXPECT_THAT(changed(files + "rank-00000.safetensors", nullptr), HasSubstr("a shard is missing"));
  const Json entry = {{"bytes", 2}, {"xxh3", {"0123456789abcdef"}}};
  for (const char* odd :
       {"rank-00003.safetensors", "rank-2.safetensors", "rank--0001.safetensors", "model.safetensors"})
    EXPECT_THAT(changed(files + odd, entry), HasSubstr(odd)) << odd;
  EXPECT_THAT(changed("/ranks", 1), HasSubstr("2 shards; expected 1 to \"ranks\", 1"));
}

TEST_F(Manifest, has_numbers_that_can_be) {
  for (const Json& value : {Json(1e30), Json(-1), Json("40"), Json(40.5), Json(true), Json(9007199254740993)})
    EXPECT_THAT(changed("/step", value), HasSubstr("\"step\" is")) << value;
  for (const Json& value : {Json(-1), Json(0), Json(1e9), Json(4294967297)})
    EXPECT_THAT(changed("/ranks", value), HasSubstr("\"ranks\" is")) << value;
  EXPECT_THAT(changed("/step", 41), HasSubstr("the folder is that of step 40"));
  EXPECT_THAT(changed("/format", 3), HasSubstr("this version reads 2"));
  for (const Json& value : {Json(0), Json(-1), Json("64")})
    EXPECT_THAT(changed("/chunk_bytes", value), HasSubstr("\"chunk_bytes\" is")) << value;
  EXPECT_THAT(changed("/chunk_bytes", 1), HasSubstr("\"xxh3\" has 1 checksums; expected 2, of 2 bytes"));
  EXPECT_THAT(changed("/files/config.json/bytes", -2),
              AllOf(HasSubstr("config.json"), HasSubstr("\"bytes\" is -2")));
  for (const char* checksum : {"", "xyz", "0123", "0123456789abcdef0", "-123456789abcdef"})
    EXPECT_THAT(changed("/files/config.json/xxh3", {checksum}), HasSubstr("16 hexadecimal digits"))
        << checksum;
  EXPECT_THAT(changed("/files/config.json/xxh3", {7}), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(changed("/files/config.json/xxh3", "0123456789abcdef"), HasSubstr("\"xxh3\" is"));
  EXPECT_THAT(changed("/files/config.json", 7), HasSubstr("expected a JSON object"));
}

// What a rank reads of a checkpoint that several verify.
TEST_F(Manifest, has_each_chunk_compared_by_one_rank_and_its_size_by_all) {
  constexpr int kRanks = 3;  // each file is one chunk
  const auto ranks_that_see_it = [&] {
    int seen = 0;
    for (int rank = 0; rank < kRanks; ++rank)
      seen += message_of<DataError>([&] { verify_checkpoint(dir(), {rank, kRanks}); }) == "no error" ? 0 : 1;
    return seen;
  };
  EXPECT_EQ(ranks_that_see_it(), 0);
  for (const auto& [name, file] : manifest_.files) {
    const std::string bytes = testing::bytes_of(dir() / name);
    folder_.write("step-40/" + name, std::string(bytes.size(), ' '));
    EXPECT_EQ(ranks_that_see_it(), 1) << name;
    folder_.write("step-40/" + name, bytes + " ");
    EXPECT_EQ(ranks_that_see_it(), kRanks) << name;
    folder_.write("step-40/" + name, bytes);
  }
}

// However many ranks wrote it.
TEST_F(Manifest, has_chunks_of_one_file_shared_by_the_ranks_that_read) {
  constexpr int64_t kChunk = 100;
  const std::string values(1050, 'v');
  const fs::path shard = folder_.write("step-40/rank-00000.safetensors", values);
  manifest_.chunk_bytes = kChunk;
  for (auto& [name, file] : manifest_.files) file = describe_file(dir() / name, kChunk);
  EXPECT_EQ(manifest_.files.at("rank-00000.safetensors").xxh3.size(), 11U);
  write_manifest(dir(), manifest_);
  for (const int ranks : {1, 2, 4}) {
    int64_t all = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t bytes = verify_checkpoint(dir(), {rank, ranks});
      EXPECT_LE(bytes, bytes_of_all() / ranks + 2 * kChunk) << rank << " of " << ranks;
      all += bytes;
    }
    EXPECT_EQ(all, bytes_of_all()) << ranks;
    for (const size_t at : {size_t{0}, size_t{99}, size_t{100}, size_t{555}, values.size() - 1}) {
      std::string flipped = values;
      flipped[at] ^= 0x10;
      folder_.write("step-40/rank-00000.safetensors", flipped);
      std::vector<std::string> told;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string message = message_of<DataError>([&] { verify_checkpoint(dir(), {rank, ranks}); });
        if (message != "no error") told.push_back(message);
      }
      const size_t begin = at / kChunk * kChunk;
      EXPECT_THAT(
          told, ::testing::ElementsAre(
                    AllOf(HasSubstr(shard.string()),
                          HasSubstr(cat("bytes ", begin, " to ", std::min(begin + kChunk, values.size()))))))
          << "byte " << at << ", " << ranks << " ranks";
      folder_.write("step-40/rank-00000.safetensors", values);
    }
  }
}

TEST_F(Manifest, covers_every_shard_that_the_weight_index_names) {
  add("model.safetensors.index.json", R"({"weight_map": {"a": "rank-00002.safetensors"}})");
  write_manifest(dir(), manifest_);
  EXPECT_THAT(
      message_of<DataError>([&] { verify_checkpoint(dir()); }),
      AllOf(HasSubstr("index.json"), HasSubstr("rank-00002.safetensors"), HasSubstr("does not list")));
}

TEST_F(Manifest, has_a_weight_index_that_names_each_tensor_once) {
  add("model.safetensors.index.json",
      R"({"weight_map": {"a": "rank-00002.safetensors", "a": "rank-00001.safetensors"}})");
  write_manifest(dir(), manifest_);
  EXPECT_THAT(message_of<DataError>([&] { verify_checkpoint(dir()); }), HasSubstr("\"a\" is there twice"));
}

TEST(TrainerState, has_every_field_in_its_range) {
  const Json good = {{"step", 4},
                     {"stage", 0},
                     {"tokens_seen", 100},
                     {"loader", Json::object()},
                     {"options", Json::object()},
                     {"optimizer_steps", 4}};
  EXPECT_EQ(parse_trainer_state(good, "c").step, 4);
  EXPECT_EQ(parse_saved_progress(good, "c").optimizer_steps, 4);
  for (const auto& [key, value] : std::map<std::string, Json>{
           {"step", 1e30}, {"stage", -1}, {"tokens_seen", "many"}, {"loader", 7}, {"options", nullptr}}) {
    Json bad = good;
    bad[key] = value;
    EXPECT_THAT(message_of<DataError>([&] { parse_trainer_state(bad, "c"); }),
                AllOf(HasSubstr("c/trainer_state.json"), HasSubstr("\"" + key + "\""), HasSubstr("expected")))
        << key;
  }
  for (const auto& [key, value] : std::map<std::string, Json>{
           {"optimizer_steps", -1}, {"loss_scale", -2.0}, {"loss_scale_clean_steps", 0.5}}) {
    Json bad = good;
    bad[key] = value;
    EXPECT_THAT(message_of<DataError>([&] { parse_saved_progress(bad, "state"); }),
                HasSubstr("state: \"" + key + "\""))
        << key;
  }
  EXPECT_THROW(parse_trainer_state(Json(3), "c"), DataError);
}

}  // namespace
}  // namespace trireme
