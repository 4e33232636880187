#include "trireme/data/indexed_dataset.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "trireme/base/error.h"

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
void widen(const std::byte* from, int64_t count, int64_t* out) {
  // The tokens of .bin start at a multiple of their width: the mapping is page aligned and the pointers are
  // checked.
  const T* tokens = reinterpret_cast<const T*>(from);
  // Ids may be signed: a negative one stays negative, and is found to be outside the vocabulary.
  for (int64_t i = 0; i < count; ++i) out[i] = tokens[i];  // NOLINT(bugprone-signed-char-misuse)
}

}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8:
      return 1;
    case TokenType::int16:
    case TokenType::uint16:
      return 2;
    case TokenType::int32:
      return 4;
    case TokenType::int64:
      return 8;
  }
  throw InternalError(cat("no such token type: ", static_cast<int>(type)));
}

TokenType token_type_for(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::uint16 : TokenType::int32;
}

std::filesystem::path indexed_dataset_bin(const std::filesystem::path& prefix) {
  return with_ending(prefix, ".bin");
}
std::filesystem::path indexed_dataset_idx(const std::filesystem::path& prefix) {
  return with_ending(prefix, ".idx");
}

bool is_indexed_dataset(const std::filesystem::path& prefix) {
  return std::filesystem::is_regular_file(indexed_dataset_bin(prefix)) &&
         std::filesystem::is_regular_file(indexed_dataset_idx(prefix));
}

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix)
    : idx_(indexed_dataset_idx(prefix)), bin_(indexed_dataset_bin(prefix)) {
  const std::string idx = idx_.path().string();
  if (idx_.bytes() < kHeaderBytes)
    throw DataError(
        cat(idx, ": truncated: ", idx_.bytes(), " bytes, but the header alone has ", kHeaderBytes));
  if (std::memcmp(idx_.data(), kMagic, kMagicBytes) != 0)
    throw DataError(cat(idx,
                        ": offset 0: not the index of an indexed dataset: its first 9 bytes are not "
                        "MMIDIDX\\0\\0; was it written by Megatron-LM or `trireme tokenize`?"));
  if (const auto version = idx_.read<uint64_t>(9); version != 1)
    throw DataError(cat(idx, ": offset 9: format version ", version, "; version 1 is known"));
  const auto code = idx_.read<uint8_t>(17);
  if (code < 1 || (code > 5 && code != 8))
    throw DataError(cat(idx, ": offset 17: token type code ", static_cast<int>(code),
                        " is no integer type (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16)"));
  type_ = static_cast<TokenType>(code);

  const auto sequences = idx_.read<uint64_t>(18), indices = idx_.read<uint64_t>(26);
  const auto room = static_cast<uint64_t>(idx_.bytes() - kHeaderBytes);
  // Compared before multiplying, so that absurd counts cannot wrap around.
  if (sequences > room / 12 || indices > room / 8 || sequences * 12 + indices * 8 > room)
    throw DataError(cat(idx, ": truncated: ", idx_.bytes(), " bytes, but its header (offset 18) counts ",
                        sequences, " sequences and ", indices, " document indices, which need ",
                        static_cast<double>(sequences) * 12 + static_cast<double>(indices) * 8 + kHeaderBytes,
                        " bytes"));
  const uint64_t rest = room - sequences * 12 - indices * 8;
  if (rest != 0 && rest != sequences)  // Megatron-LM's multimodal sets end with one mode byte a sequence
    throw DataError(cat(idx, ": offset ", idx_.bytes() - static_cast<int64_t>(rest), ": ", rest,
                        " bytes follow the last array; expected none"));
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(indices) - 1;
  pointers_at_ = kHeaderBytes + sequences_ * 4;
  document_indices_at_ = pointers_at_ + sequences_ * 8;
  check_layout();
}

void IndexedDataset::check_layout() {
  const std::string idx = idx_.path().string(), bin = bin_.path().string();
  const int64_t width = token_bytes(type_);
  int64_t expected = 0;  // bytes of .bin so far
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t size = idx_.read<int32_t>(kHeaderBytes + i * 4),
                  pointer = idx_.read<int64_t>(pointers_at_ + i * 8);
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
    const auto index = idx_.read<int64_t>(document_indices_at_ + i * 8);
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

int64_t IndexedDataset::sequence_begin(int64_t sequence) const {
  return sequence == sequences_ ? tokens_
                                : idx_.read<int64_t>(pointers_at_ + sequence * 8) / token_bytes(type_);
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  return sequence_begin(idx_.read<int64_t>(document_indices_at_ + document * 8));
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
  const std::byte* from = bin_.data() + begin * token_bytes(type_);
  switch (type_) {
    case TokenType::uint8:
      widen<uint8_t>(from, count, out);
      break;
    case TokenType::int8:
      widen<int8_t>(from, count, out);
      break;
    case TokenType::int16:
      widen<int16_t>(from, count, out);
      break;
    case TokenType::uint16:
      widen<uint16_t>(from, count, out);
      break;
    case TokenType::int32:
      widen<int32_t>(from, count, out);
      break;
    case TokenType::int64:
      widen<int64_t>(from, count, out);
      break;
  }
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
                        " ids: the set was made with another tokenizer than the model's"));
  }
}

}  // namespace trireme
