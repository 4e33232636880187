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
  // As JSON writes and reads it without loss.
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

Json describe_text(const TextToTokenize& text) {
  const TextSource source({text.input}, text.text_field);
  const fs::path tokenizer = text.tokenizer_from / "tokenizer.json";
  Digest content;
  uint64_t bytes = 0;
  for (const fs::path& file : source.files()) {
    content.add(file.lexically_relative(text.input).string());
    content.add_number(file_checksum(file));
    bytes += fs::file_size(file);
  }
  return {{"path", fs::absolute(text.input).lexically_normal().string()},
          {"kind", "text"},
          {"files", source.files().size()},
          {"bytes", bytes},
          {"content", content.text()},
          {"text_field", text.text_field},
          {"append_eos", text.append_eos},
          {"tokenizer", is_there(tokenizer) ? checksum_text(file_checksum(tokenizer)) : "none"},
          {"vocab_size", text.vocab_size}};
}

}  // namespace

Json describe_source(const TextToTokenize& text) {
  const bool tokens = is_indexed_dataset(text.input);
  if (!tokens && !is_there(text.input))
    throw ConfigError(cat("there is no file, folder or tokenized set (PREFIX.bin and PREFIX.idx) at ",
                          text.input.string()));
  Json source = tokens ? describe_tokens(text.input) : describe_text(text);
  Digest digest;
  for (const auto& [key, value] : source.items()) {
    if (key == "path") continue;
    digest.add(key);
    digest.add(value.dump());
  }
  source["digest"] = digest.text();
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
