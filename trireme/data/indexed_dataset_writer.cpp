#include "trireme/data/indexed_dataset_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <unistd.h>
#include <utility>

#include "trireme/base/contains.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/make_folder.h"
#include "trireme/base/write_all.h"
#include "trireme/data/tokenizer_vocabulary.h"

namespace trireme {

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

[[noreturn]] void fail(const std::filesystem::path& file, const char* what, int error) {
  throw_file_error(cat(file.string(), ": ", what), error, "; nothing was left behind");
}

FileDescriptor create(const std::filesystem::path& file) {
  FileDescriptor descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!descriptor.is_open()) fail(file, "cannot be created", errno);
  return descriptor;
}

void write_to(const FileDescriptor& descriptor, const std::vector<std::byte>& bytes,
              const std::filesystem::path& file) {
  const int error = write_all(descriptor.get(), bytes.data(), bytes.size()).error;
  if (error != 0) fail(file, "cannot be written", error);
}

// Some file systems report a full disk only here.
void sync_and_close(FileDescriptor descriptor, const std::filesystem::path& file) {
  int error = ::fsync(descriptor.get()) == 0 ? 0 : errno;
  if (::close(descriptor.release()) != 0 && error == 0) error = errno;
  if (error != 0) fail(file, "cannot be synced to disk", error);
}

template <typename T>
void append(std::vector<std::byte>& out, T value) {
  const size_t offset = out.size();
  out.resize(offset + sizeof(T));
  std::memcpy(out.data() + offset, &value, sizeof(T));
}

int64_t ids_held_by(TokenType type) {
  TRIREME_ASSERT(type == TokenType::uint16 || type == TokenType::int32, "sets are not written in type ",
                 static_cast<int>(type));
  return int64_t{1} << (type == TokenType::uint16 ? 16 : 31);
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(const std::filesystem::path& prefix, int64_t vocab_size)
    : IndexedDatasetWriter(prefix, vocab_size, token_type_for(vocab_size)) {}

IndexedDatasetWriter::IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type)
    : IndexedDatasetWriter(prefix, ids_held_by(type), type) {}

IndexedDatasetWriter::IndexedDatasetWriter(const std::filesystem::path& prefix, int64_t vocab_size,
                                           TokenType type)
    : bin_(indexed_dataset_bin(prefix)),
      idx_(indexed_dataset_idx(prefix)),
      vocab_size_(vocab_size),
      type_(type) {
  if (!prefix.has_filename())
    throw ConfigError(cat(prefix.string(), ": is a folder; expected the PREFIX of two files, such as ",
                          (prefix / "tokens").string()));
  const std::string suffix = cat(kPartialSet, ::getpid());
  (partial_bin_ = bin_) += suffix;
  (partial_idx_ = idx_) += suffix;
  if (bin_.has_parent_path()) make_folder(bin_.parent_path());
  descriptor_ = create(partial_bin_);
  buffer_.reserve(kBufferBytes + 64);
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  std::error_code ignored;
  std::filesystem::remove(partial_bin_, ignored);
  std::filesystem::remove(partial_idx_, ignored);
}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens, int64_t prompt_tokens) {
  add_document(tokens, prompt_tokens > 0 ? TokenSpans{{0, prompt_tokens}} : TokenSpans{});
}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens, const TokenSpans& prompts) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw DataError(cat(bin_.string(), ": document ", documents(), " has ", tokens.size(),
                        " tokens; the format holds at most 2147483647 in one: split the document"));
  const auto add = [&](int64_t begin, int64_t end, SequenceMode mode) {
    add_sequence(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), mode);
  };
  int64_t done = 0;
  for (const TokenSpan& prompt : prompts) {
    TRIREME_ASSERT(prompt.begin >= done && prompt.size() > 0 && prompt.end <= std::ssize(tokens),
                   "a prompt of [", prompt.begin, ", ", prompt.end, ") behind ", done, " in a document of ",
                   tokens.size());
    if (prompt.begin > done) add(done, prompt.begin, SequenceMode::predicted);
    add(prompt.begin, prompt.end, SequenceMode::prompt);
    done = prompt.end;
  }
  if (done == 0 || done < std::ssize(tokens)) add(done, std::ssize(tokens), SequenceMode::predicted);
  documents_.push_back(std::ssize(sizes_));
}

void IndexedDatasetWriter::add_sequence(std::span<const int32_t> tokens, SequenceMode mode) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocab_size_)
      throw DataError(cat(bin_.string(), ": document ", documents(), " has the token id ", token,
                          ", outside the vocabulary of ", vocab_size_,
                          " ids: another model's tokenizer made it, or ", kTokensWithoutRows));
    largest_id_ = std::max(largest_id_, token);
    if (type_ == TokenType::uint16)
      append(buffer_, static_cast<uint16_t>(token));
    else
      append(buffer_, token);
    if (buffer_.size() >= kBufferBytes) {
      write_to(descriptor_, buffer_, partial_bin_);
      buffer_.clear();
    }
  }
  sizes_.push_back(static_cast<int32_t>(tokens.size()));
  modes_.push_back(mode);
  tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::write_index() const {
  std::vector<std::byte> out;
  out.reserve(34 + sizes_.size() * 13 + documents_.size() * 8);
  for (const char c : std::string_view("MMIDIDX\0\0", 9)) append(out, c);
  append(out, uint64_t{1});
  append(out, static_cast<uint8_t>(type_));
  append(out, static_cast<uint64_t>(sizes_.size()));
  append(out, static_cast<uint64_t>(documents_.size()));
  for (const int32_t size : sizes_) append(out, size);
  int64_t pointer = 0;
  for (const int32_t size : sizes_) {
    append(out, pointer);
    pointer += size * token_bytes(type_);
  }
  for (const int64_t first_sequence : documents_) append(out, first_sequence);
  // Without prompts the file is what it is in Megatron-LM.
  if (contains(modes_, SequenceMode::prompt))
    for (const SequenceMode mode : modes_) append(out, mode);

  FileDescriptor descriptor = create(partial_idx_);
  write_to(descriptor, out, partial_idx_);
  sync_and_close(std::move(descriptor), partial_idx_);
}

void IndexedDatasetWriter::finish() {
  if (tokens_ == 0)
    throw DataError(
        cat(bin_.string(), ": there is nothing to write: no document has a token; is the input empty?"));
  write_to(descriptor_, buffer_, partial_bin_);
  buffer_.clear();
  sync_and_close(std::move(descriptor_), partial_bin_);
  write_index();
  // Removes an older index first and renames the new one last: an index never lies beside another set's
  // tokens.
  std::error_code error;
  std::filesystem::remove(idx_, error);
  if (!error) std::filesystem::rename(partial_bin_, bin_, error);
  if (!error) {
    std::filesystem::rename(partial_idx_, idx_, error);
    std::error_code ignored;
    if (error) std::filesystem::remove(bin_, ignored);
  }
  if (error) throw_file_error(cat(bin_.string(), ": cannot be put in place"), error.value());
  sync_folder(bin_.parent_path());
}

}  // namespace trireme
