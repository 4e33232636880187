#include "trireme/train/remembered_checksums.h"

#include <cerrno>
#include <chrono>
#include <limits>
#include <sys/stat.h>
#include <system_error>
#include <utility>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/json.h"
#include "trireme/tokenizer/utf8.h"
#include "trireme/train/checksum.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr int kChecksumsFormat = 1;
constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr int64_t kCoarsestClockNs = 2 * kNanoseconds;

int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace

RememberedChecksums::RememberedChecksums(fs::path file, std::function<void(const std::string&)> note)
    : file_(std::move(file)), note_(std::move(note)) {
  try {
    if (is_there(file_)) read();
  } catch (const DataError& error) {
    sources_.clear();
    std::error_code stays;  // until it is replaced
    fs::remove(file_, stays);
    note_(cat("the remembered checksums of texts are damaged, so that the texts are read again: ",
              error.what()));
  }
}

void RememberedChecksums::read() {
  const std::string origin = file_.string();
  JsonLimits limits;
  limits.bytes = int64_t{4} << 30;  // enough for millions of files
  const Json json = read_json(file_, limits);
  whole_number(json, "format", {kChecksumsFormat, kChecksumsFormat}, origin);
  const Json& sources = object_value(json, "sources", origin);
  if (text_value(json, "xxh3", origin) != text_checksum(sources.dump()))
    throw DataError(cat(origin, ": \"xxh3\" is not the checksum of \"sources\""));
  for (const auto& [input, files] : sources.items())
    for (const auto& [name, known] : files.items())
      sources_[input][name] = {
          {whole_number(known, "bytes", {}, origin),
           whole_number(known, "modified_ns", {.least = std::numeric_limits<int64_t>::min()}, origin)},
          parse_checksum(text_value(known, "xxh3", origin), origin)};
}

void RememberedChecksums::write() const {
  Json sources = Json::object();
  for (const auto& [input, files] : sources_)
    for (const auto& [name, known] : files)
      sources[input][name] = {{"bytes", known.state.bytes},
                              {"modified_ns", known.state.modified_ns},
                              {"xxh3", checksum_text(known.xxh3)}};
  const Json json = {
      {"format", kChecksumsFormat}, {"xxh3", text_checksum(sources.dump())}, {"sources", sources}};
  std::error_code shown_by_writing;
  fs::create_directories(file_.parent_path(), shown_by_writing);
  try {
    replace_file(file_, json.dump(1) + "\n");
  } catch (const Error& error) {
    note_(cat("the checksums of texts are not remembered, so that the next start reads them again: ",
              error.what()));
  }
}

RememberedChecksums::FileState RememberedChecksums::state_of(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) throw_file_error(file.string() + ": cannot be looked at", errno);
  return {status.st_size, status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
}

std::vector<FileContent> RememberedChecksums::of(const fs::path& input, const std::vector<fs::path>& files) {
  const std::string source = fs::absolute(input).lexically_normal().string();
  const KnownFiles before = sources_[source];
  KnownFiles now;
  std::vector<FileContent> contents;
  contents.reserve(files.size());
  for (const fs::path& file : files) {
    const std::string name = file.lexically_relative(input).string();
    const FileState state = state_of(file);
    if (const auto known = before.find(name); known != before.end() && known->second.state == state) {
      now.insert(*known);
      contents.push_back({state.bytes, known->second.xxh3});
      continue;
    }
    const int64_t begin_ns = now_ns();
    contents.push_back({state.bytes, file_checksum(file)});
    // JSON holds only UTF-8.
    if (state_of(file) == state && state.modified_ns < begin_ns - kCoarsestClockNs &&
        is_valid_utf8(source + name))
      now[name] = {state, contents.back().xxh3};
  }
  if (now != before) {
    sources_[source] = std::move(now);
    write();
  }
  return contents;
}

}  // namespace trireme
