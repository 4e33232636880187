#include "trireme/train/data_sources.h"

#include <algorithm>
#include <memory>
#include <xxhash.h>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/text_source.h"
#include "trireme/train/file_checksum.h"
#include "trireme/train/remembered_checksums.h"
#include "trireme/train/training_data.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

class Digest {
 public:
  Digest() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  void add(const std::string& text) {
    add_number(text.size());
    add(text.data(), text.size());
  }
  void add_number(uint64_t number) { add(&number, sizeof(number)); }
  // As text, which JSON writes and reads without loss.
  std::string text() const { return checksum_text(XXH3_64bits_digest(state_.get())); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::string digest_of_spread_blocks(const fs::path& file) {
  constexpr int64_t kBlocks = 256, kBlockBytes = int64_t{64} << 10;
  const InputFile in(file);
  Digest digest;
  std::vector<char> block(kBlockBytes);
  const auto add = [&](int64_t offset) {
    const int64_t got = in.read_some(offset, block.data(), kBlockBytes);
    digest.add(block.data(), static_cast<size_t>(got));
  };
  if (in.bytes() <= kBlocks * kBlockBytes) {
    for (int64_t offset = 0; offset < in.bytes(); offset += kBlockBytes) add(offset);
  } else {
    // The first block begins the file, the last one ends it.
    const int64_t room = in.bytes() - kBlockBytes;
    for (int64_t i = 0; i < kBlocks; ++i)
      add(room / (kBlocks - 1) * i + room % (kBlocks - 1) * i / (kBlocks - 1));
  }
  return digest.text();
}

Json describe_tokens(const fs::path& prefix) {
  const fs::path bin = indexed_dataset_bin(prefix);
  return {{"path", fs::absolute(prefix).lexically_normal().string()},
          {"kind", "tokenized set"},
          {"index", checksum_text(file_checksum(indexed_dataset_idx(prefix)))},
          {"bytes", InputFile(bin).bytes()},
          {"tokens", digest_of_spread_blocks(bin)}};
}

std::string path_of(const TextToTokenize& text) {
  return fs::absolute(text.input).lexically_normal().string();
}

Json describe_text(const TextToTokenize& text, RememberedChecksums& remembered) {
  const TextSource source({text.input}, text.text_field);
  const std::vector<uint64_t> checksums = remembered.of(text.input, source.files());
  Digest content;
  uint64_t bytes = 0;
  for (size_t i = 0; i < checksums.size(); ++i) {
    const fs::path& file = source.files()[i];
    content.add(file.lexically_relative(text.input).string());
    content.add_number(checksums[i]);
    bytes += fs::file_size(file);
  }
  return {{"path", path_of(text)},
          {"kind", "text"},
          {"files", source.files().size()},
          {"bytes", bytes},
          {"content", content.text()}};
}

// Adds the settings by which the text becomes tokens.
void add_settings(Json& source, const TextToTokenize& text) {
  const fs::path tokenizer = text.tokenizer_from / "tokenizer.json";
  source["text_field"] = text.text_field;
  source["append_eos"] = text.append_eos;
  source["tokenizer"] = is_there(tokenizer) ? checksum_text(file_checksum(tokenizer)) : "none";
  source["vocab_size"] = text.vocab_size;
}

void add_digest(Json& source) {
  Digest digest;
  for (const auto& [key, value] : source.items()) {
    if (key == "path" || key == "digest") continue;
    digest.add(key);
    digest.add(value.dump());
  }
  source["digest"] = digest.text();
}

}  // namespace

Json describe_source(const TextToTokenize& text, RememberedChecksums& remembered) {
  const bool tokens = is_indexed_dataset(text.input);
  if (!tokens && !is_there(text.input))
    throw ConfigError(cat("there is no file, folder or tokenized set (PREFIX.bin and PREFIX.idx) at ",
                          text.input.string()));
  Json source = tokens ? describe_tokens(text.input) : describe_text(text, remembered);
  if (!tokens) add_settings(source, text);
  add_digest(source);
  return source;
}

Json describe_gone_text(const TextToTokenize& text, const Json& before) {
  if (!before.is_object() || before.value("kind", Json()) != "text" ||
      before.value("path", Json()) != path_of(text))
    return nullptr;
  Json source = before;
  add_settings(source, text);
  add_digest(source);
  return source;
}

std::vector<std::string> source_changes(const Json& before, const Json& now) {
  std::vector<std::string> changes;
  if (before.value("digest", "") == now.value("digest", "")) return changes;
  for (const auto& [key, value] : now.items()) {
    if (key == "path" || key == "digest") continue;
    const Json old = before.value(key, Json());
    if (old != value) changes.push_back(cat(key, " ", quotation(old), " -> ", quotation(value)));
  }
  return changes;
}

}  // namespace trireme
