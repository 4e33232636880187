#include "trireme/train/data_sources.h"

#include "trireme/base/error.h"
#include "trireme/base/field_differences.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/input_file.h"
#include "trireme/base/sizes.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/text_source.h"
#include "trireme/tokenizer/tokenizer.h"
#include "trireme/train/checksum.h"
#include "trireme/train/remembered_checksums.h"
#include "trireme/train/training_data.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int64_t kBlocks = 256;  // of a set's tokens

// The working folder may have a name of any bytes, and JSON is of UTF-8.
std::string path_of(const fs::path& input) {
  return as_utf8(fs::absolute(input).lexically_normal().string());
}

Json describe_tokens(const fs::path& prefix) {
  const fs::path bin = indexed_dataset_bin(prefix);
  return {{"path", path_of(prefix)},
          {"kind", "tokenized set"},
          {"index", checksum_text(file_checksum(indexed_dataset_idx(prefix)))},
          {"bytes", InputFile(bin).bytes()},
          {"tokens", digest_of_spread_blocks(bin, kBlocks).text()}};
}

Json describe_text(const TextToTokenize& text, RememberedChecksums& remembered,
                   const std::function<void(const std::string&)>& note) {
  const TextSource source({text.input}, text.corpus.field);
  tell_left_out(source, text, note);
  const std::vector<FileContent> contents = remembered.of(text.input, source.files());
  Digest content;
  int64_t bytes = 0;
  for (size_t i = 0; i < contents.size(); ++i) {
    content.add(source.files()[i].lexically_relative(text.input).string());
    content.add_number(contents[i].xxh3);
    bytes += contents[i].bytes;
  }
  return {{"path", path_of(text.input)},
          {"kind", "text"},
          {"files", source.files().size()},
          {"bytes", bytes},
          {"content", content.text()}};
}

// Adds the settings by which the text becomes tokens.
void add_settings(Json& source, const TextToTokenize& text) {
  const fs::path tokenizer = text.tokenizer_from / "tokenizer.json";
  const bool append_eos = text.corpus.append_end_of_text;
  source["text_field"] = text.corpus.field;
  source["on_bad_record"] = name_of(text.corpus.on_bad_record);
  source["append_eos"] = append_eos;
  // Other files than tokenizer.json name it.
  source["end_of_text"] = append_eos ? named_end_of_text(text.tokenizer_from).token : Json();
  source["tokenizer"] = is_there(tokenizer) ? checksum_text(file_checksum(tokenizer)) : "none";
  source["vocab_size"] = text.corpus.vocab_size;
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

void refuse_missing(const fs::path& input) {
  if (is_there(input)) return;
  const fs::path bin = indexed_dataset_bin(input), idx = indexed_dataset_idx(input);
  if (is_there(bin) != is_there(idx))
    throw ConfigError(cat("the tokenized set ", quotation(input.string()), " lacks ",
                          quotation((is_there(bin) ? idx : bin).string()),
                          ": copy it beside the other file, or make the set anew"));
  throw ConfigError(cat("there is no file, folder or tokenized set (PREFIX.bin and PREFIX.idx) at ",
                        quotation(input.string())));
}

void tell_left_out(const TextSource& source, const TextToTokenize& text,
                   const std::function<void(const std::string&)>& note) {
  const SourceCounts& counts = source.counts();
  if (counts.left_out_files == 0) return;
  note(cat("files of ", text.input.string(), " that are left out: ", format_count(counts.left_out_files)));
  for (const std::string& line : counts.left_out_lines()) note("  " + line);
}

Json describe_source(const TextToTokenize& text, RememberedChecksums& remembered,
                     const std::function<void(const std::string&)>& note) {
  const bool tokens = is_indexed_dataset(text.input);
  if (!tokens) refuse_missing(text.input);
  Json source = tokens ? describe_tokens(text.input) : describe_text(text, remembered, note);
  if (!tokens) add_settings(source, text);
  add_digest(source);
  return source;
}

uint64_t digest_of_set(const fs::path& prefix) {
  Digest digest;
  for (const fs::path& file : {indexed_dataset_idx(prefix), indexed_dataset_bin(prefix)}) {
    digest.add_number(static_cast<uint64_t>(InputFile(file).bytes()));
    digest.add_number(digest_of_spread_blocks(file, kBlocks).value());
  }
  return digest.value();
}

Json describe_gone_text(const TextToTokenize& text, const Json& before) {
  if (!before.is_object() || before.value("kind", Json()) != "text" ||
      before.value("path", Json()) != path_of(text.input))
    return nullptr;
  Json source = before;
  add_settings(source, text);
  add_digest(source);
  return source;
}

std::vector<std::string> source_changes(const Json& before, const Json& now) {
  std::vector<std::string> changes;
  if (before.value("digest", "") == now.value("digest", "")) return changes;
  for (const auto& [key, old, value] : field_differences(before, now))
    if (key != "path" && key != "digest")
      changes.push_back(cat(key, " ", quotation(old), " -> ", quotation(value)));
  return changes;
}

}  // namespace trireme
