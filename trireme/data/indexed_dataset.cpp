#include "trireme/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/data/tokenizer_vocabulary.h"

namespace trireme {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and is read as it lies");

namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // 9 bytes with the terminator
constexpr int64_t kMagicBytes = sizeof(kMagic);
constexpr int64_t kHeaderBytes = kMagicBytes + 8 + 1 + 8 + 8;

std::filesystem::path with_ending(const std::filesystem::path& prefix, const char* ending) {
  std::filesystem::path path = prefix;
  if (path.extension() == ".bin" || path.extension() == ".idx") path.replace_extension();
  path += ending;
  return path;
}

template <typename T>
T number_at(const InputFile& file, int64_t offset) {
  T value{};
  file.read(offset, &value, sizeof(T));
  return value;
}

// An array of numbers in a file, to be read forward: one read fetches many numbers.
template <typename T>
class Numbers {
 public:
  Numbers(const InputFile& file, int64_t offset, int64_t count, int64_t at_once)
      : file_(file), at_(offset), count_(count), at_once_(at_once) {}

  T operator[](int64_t index) {
    if (index < first_ || index >= first_ + static_cast<int64_t>(block_.size())) {
      first_ = index;
      block_.resize(static_cast<size_t>(std::min(at_once_, count_ - index)));
      file_.read(at_ + first_ * kBytes, block_.data(), static_cast<int64_t>(block_.size()) * kBytes);
    }
    return block_[static_cast<size_t>(index - first_)];
  }

 private:
  static constexpr int64_t kBytes = sizeof(T);
  const InputFile& file_;
  int64_t at_;
  int64_t count_;
  int64_t at_once_;
  int64_t first_ = 0;
  std::vector<T> block_;
};
constexpr int64_t kNumbersAtOnce = 8192;

// Calls `use` with a zero of the type in which a set holds its tokens.
template <typename Use>
auto with_type(TokenType type, const Use& use) {
  switch (type) {
    case TokenType::uint8:
      return use(uint8_t{});
    case TokenType::int8:
      return use(int8_t{});
    case TokenType::int16:
      return use(int16_t{});
    case TokenType::uint16:
      return use(uint16_t{});
    case TokenType::int32:
      return use(int32_t{});
    case TokenType::int64:
      return use(int64_t{});
  }
  throw InternalError(cat("no such token type: ", static_cast<int>(type)));
}

template <typename T>
void read_tokens(const InputFile& file, int64_t begin, int64_t count, int64_t* out) {
  constexpr int64_t kBytes = sizeof(T);
  std::array<T, 65536 / sizeof(T)> block;
  for (int64_t done = 0; done < count;) {
    const int64_t now = std::min<int64_t>(count - done, block.size());
    file.read((begin + done) * kBytes, block.data(), now * kBytes);
    // Ids may be signed: a negative id stays negative and is then found outside the vocabulary.
    for (int64_t i = 0; i < now; ++i) out[done + i] = block[i];  // NOLINT(bugprone-signed-char-misuse)
    done += now;
  }
}

}  // namespace

int64_t token_bytes(TokenType type) {
  return with_type(type, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); });
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65'500 ? TokenType::uint16 : TokenType::int32;
}

std::filesystem::path indexed_dataset_bin(const std::filesystem::path& prefix) {
  return with_ending(prefix, ".bin");
}
std::filesystem::path indexed_dataset_idx(const std::filesystem::path& prefix) {
  return with_ending(prefix, ".idx");
}

bool is_indexed_dataset(const std::filesystem::path& prefix) {
  return is_file(indexed_dataset_bin(prefix)) && is_file(indexed_dataset_idx(prefix));
}

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix, std::string made_of)
    : idx_(indexed_dataset_idx(prefix), "the index of a tokenized set"),
      bin_(indexed_dataset_bin(prefix), "the tokens of a tokenized set"),
      made_of_(std::move(made_of)) {
  const std::string idx = idx_.path().string();
  if (idx_.bytes() < kHeaderBytes)
    throw DataError(
        cat(idx, ": truncated: ", idx_.bytes(), " bytes, but the header alone has ", kHeaderBytes));
  std::array<std::byte, kMagicBytes> magic{};
  idx_.read(0, magic.data(), kMagicBytes);
  if (std::memcmp(magic.data(), kMagic, kMagicBytes) != 0)
    throw DataError(cat(idx,
                        ": offset 0: not the index of an indexed dataset: its first 9 bytes are not "
                        "MMIDIDX\\0\\0; was it written by Megatron-LM or `trireme tokenize`?"));
  if (const auto version = number_at<uint64_t>(idx_, 9); version != 1)
    throw DataError(cat(idx, ": offset 9: format version ", version, "; version 1 is known"));
  const auto code = number_at<uint8_t>(idx_, 17);
  if (code < 1 || (code > 5 && code != 8))
    throw DataError(cat(idx, ": offset 17: token type code ", static_cast<int>(code),
                        " is no integer type (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16)"));
  type_ = static_cast<TokenType>(code);

  const auto sequences = number_at<uint64_t>(idx_, 18), indices = number_at<uint64_t>(idx_, 26);
  const auto room = static_cast<uint64_t>(idx_.bytes() - kHeaderBytes);
  // Compared before multiplying, so that absurd counts cannot wrap around.
  if (sequences > room / 12 || indices > room / 8 || sequences * 12 + indices * 8 > room)
    throw DataError(cat(idx, ": truncated: ", idx_.bytes(), " bytes, but its header (offset 18) counts ",
                        sequences, " sequences and ", indices, " document indices, which need ",
                        static_cast<double>(sequences) * 12 + static_cast<double>(indices) * 8 + kHeaderBytes,
                        " bytes"));
  const uint64_t rest = room - sequences * 12 - indices * 8;
  if (rest != 0 && rest != sequences)
    throw DataError(cat(idx, ": offset ", idx_.bytes() - static_cast<int64_t>(rest), ": ", rest,
                        " bytes follow the last array; expected none, or a mode for each of ", sequences,
                        " sequences"));
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(indices) - 1;
  pointers_at_ = kHeaderBytes + sequences_ * 4;
  document_indices_at_ = pointers_at_ + sequences_ * 8;
  if (rest > 0) modes_at_ = document_indices_at_ + (documents_ + 1) * 8;
  check_layout();
  if (modes_at_ > 0) read_prompts();
}

void IndexedDataset::check_layout() {
  const std::string idx = idx_.path().string(), bin = bin_.path().string();
  const int64_t width = token_bytes(type_);
  Numbers<int32_t> sizes(idx_, kHeaderBytes, sequences_, kNumbersAtOnce);
  Numbers<int64_t> pointers(idx_, pointers_at_, sequences_, kNumbersAtOnce);
  Numbers<int64_t> indices(idx_, document_indices_at_, documents_ + 1, kNumbersAtOnce);
  int64_t expected = 0;  // bytes of .bin so far
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t size = sizes[i], pointer = pointers[i];
    if (size < 0)
      throw DataError(
          cat(idx, ": offset ", kHeaderBytes + i * 4, ": sequence ", i, " has ", size, " tokens"));
    if (pointer < 0 || pointer > bin_.bytes() - size * width)
      throw DataError(cat(idx, ": offset ", pointers_at_ + i * 8, ": sequence ", i, " is bytes [", pointer,
                          ", ", pointer, " + ", size * width, ") of ", bin, ", which has ", bin_.bytes(),
                          " bytes: the two files do not belong together, or the second is truncated"));
    if (pointer != expected)
      throw DataError(cat(idx, ": offset ", pointers_at_ + i * 8, ": sequence ", i, " starts at byte ",
                          pointer, ", but the sizes of those before it add up to ", expected));
    expected += size * width;
  }
  if (expected != bin_.bytes())
    throw DataError(cat(bin, ": ", bin_.bytes(), " bytes, but the sizes in ", idx, " add up to ", expected,
                        ": the two files do not belong together"));
  int64_t before = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    const int64_t index = indices[i];
    if (index < before || index > sequences_ || (i == 0 && index != 0) ||
        (i == documents_ && index != sequences_))
      throw DataError(cat(idx, ": offset ", document_indices_at_ + i * 8, ": document index ", i, " is ",
                          index, "; they must rise from 0 to the number of sequences, ", sequences_));
    before = index;
  }
  if (documents_ < 0) {
    if (sequences_ > 0)
      throw DataError(cat(idx, ": offset 26: no document indices for ", sequences_, " sequences"));
    documents_ = 0;
  }
  tokens_ = expected / width;
  if (tokens_ == 0) throw DataError(cat(bin, ": holds no tokens"));
}

void IndexedDataset::read_prompts() {
  Numbers<int32_t> sizes(idx_, kHeaderBytes, sequences_, kNumbersAtOnce);
  Numbers<uint8_t> modes(idx_, modes_at_, sequences_, kNumbersAtOnce);
  int64_t begin = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t end = begin + sizes[i];
    const auto mode = static_cast<SequenceMode>(modes[i]);
    if (mode != SequenceMode::predicted && mode != SequenceMode::prompt)
      throw DataError(cat(idx_.path().string(), ": offset ", modes_at_ + i, ": sequence ", i,
                          " has the mode ", static_cast<int>(mode),
                          "; expected 0 (predicted) or 1 (prompt)"));
    if (mode == SequenceMode::prompt) prompts_.add({begin, end});
    begin = end;
  }
}

void IndexedDataset::refuse_changed() const {
  throw DataError(cat(idx_.path().string(),
                      ": was changed since it was opened; write sets under another name, or begin anew"));
}

int64_t IndexedDataset::token_offset(int64_t pointer) const {
  const int64_t token = pointer / token_bytes(type_);
  if (pointer < 0 || token > tokens_) refuse_changed();
  return token;
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  return document_begins(document, 1)[0];
}

std::vector<int64_t> IndexedDataset::document_begins(int64_t first, int64_t count) const {
  std::vector<int64_t> begins(static_cast<size_t>(count));
  idx_.read(document_indices_at_ + first * 8, begins.data(), count * 8);
  Numbers<int64_t> pointers(idx_, pointers_at_, sequences_, std::min(count, kNumbersAtOnce));
  for (int64_t& begin : begins) {
    if (begin < 0 || begin > sequences_) refuse_changed();
    begin = begin == sequences_ ? tokens_ : token_offset(pointers[begin]);
  }
  return begins;
}

void IndexedDataset::for_documents(TokenSpan range, const std::function<void(TokenSpan)>& body) const {
  if (range.size() == 0) return;
  const int64_t end = document_of(range.end - 1) + 1;
  for (int64_t first = document_of(range.begin); first < end; first += kNumbersAtOnce) {
    const auto begins = document_begins(first, std::min(kNumbersAtOnce, end - first) + 1);
    for (size_t i = 1; i < begins.size(); ++i)
      body({std::max(range.begin, begins[i - 1]), std::min(range.end, begins[i])});
  }
}

int64_t IndexedDataset::longest_document() const {
  int64_t longest = 0;
  for_documents({0, tokens_}, [&](TokenSpan document) { longest = std::max(longest, document.size()); });
  return longest;
}

int64_t IndexedDataset::document_of(int64_t token) const {
  int64_t low = 0, high = documents_;  // the last document that begins at or before the token
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return low;
}

void IndexedDataset::read(int64_t begin, int64_t count, int64_t* out, int64_t vocab_size) const {
  TRIREME_ASSERT(begin >= 0 && count >= 0 && begin + count <= tokens_, "tokens [", begin, ", ", begin + count,
                 ") of ", tokens_);
  with_type(type_, [&](auto zero) { read_tokens<decltype(zero)>(bin_, begin, count, out); });
  if (vocab_size <= 0) return;
  uint64_t largest = 0;  // unsigned, so that negative ids are large too
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<uint64_t>(out[i]));
  if (largest < static_cast<uint64_t>(vocab_size)) return;
  for (int64_t i = 0; i < count; ++i) {
    if (out[i] >= 0 && out[i] < vocab_size) continue;
    const int64_t document = document_of(begin + i);
    throw DataError(cat(bin_.path().string(), ": document ", document, ", token ",
                        begin + i - document_begin(document), " (token ", begin + i,
                        " of the set) has the id ", out[i], ", but the model's vocabulary has ", vocab_size,
                        " ids: the set was made with another tokenizer than the model's, or ",
                        kTokensWithoutRows));
  }
}

}  // namespace trireme
