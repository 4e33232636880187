#include "trireme/train/file_checksum.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;

// `read` fills its buffer from the beginning and returns how many bytes; 0 at the end.
template <typename Read>
uint64_t checksum_of_blocks(int64_t block_bytes, const Read& read) {
  Digest digest;
  std::vector<unsigned char> block(static_cast<size_t>(block_bytes));
  while (const size_t got = read(block)) digest.add(block.data(), got);
  return digest.value();
}

}  // namespace

uint64_t file_checksum(const std::filesystem::path& file) {
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file.c_str(), "rbe"), close);
  if (!in) throw DataError(cat(file.string(), ": cannot open: ", std::strerror(errno)));
  const uint64_t checksum = checksum_of_blocks(kBlockBytes, [&](std::vector<unsigned char>& block) {
    return std::fread(block.data(), 1, block.size(), in.get());
  });
  if (std::ferror(in.get()) != 0)
    throw DataError(cat(file.string(), ": cannot read: ", std::strerror(errno)));
  return checksum;
}

uint64_t checksum_of_range(const InputFile& file, int64_t begin, int64_t count) {
  int64_t done = 0;
  return checksum_of_blocks(std::min(count, kBlockBytes), [&](std::vector<unsigned char>& block) {
    const int64_t bytes = std::min(count - done, kBlockBytes);
    if (bytes > 0) file.read(begin + std::exchange(done, done + bytes), block.data(), bytes);
    return static_cast<size_t>(bytes);
  });
}

uint64_t parse_checksum(const std::string& text, const std::string& origin) {
  uint64_t checksum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    throw DataError(
        cat(origin, ": \"xxh3\" is \"", quotation(text), "\"; expected a checksum of 16 hexadecimal digits"));
  return checksum;
}

}  // namespace trireme
