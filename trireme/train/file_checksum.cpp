#include "trireme/train/file_checksum.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;

}  // namespace

uint64_t file_checksum(const std::filesystem::path& file) {
  const InputFile in(file);
  return checksum_of_range(in, 0, in.bytes());
}

uint64_t checksum_of_range(const InputFile& file, int64_t begin, int64_t count) {
  Digest digest;
  std::vector<unsigned char> block(static_cast<size_t>(std::min(count, kBlockBytes)));
  for (int64_t done = 0; done < count;) {
    const int64_t bytes = std::min(count - done, kBlockBytes);
    file.read(begin + done, block.data(), bytes);
    digest.add(block.data(), static_cast<size_t>(bytes));
    done += bytes;
  }
  return digest.value();
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
