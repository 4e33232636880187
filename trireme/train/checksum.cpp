#include "trireme/train/checksum.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/parse_whole.h"

namespace trireme {

std::string checksum_text(uint64_t checksum) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(checksum));
  return text;
}

uint64_t parse_checksum(const std::string& text, const std::string& origin) {
  const auto checksum = parse_whole<uint64_t>(text, 16);
  if (!checksum || text.size() != 16)
    throw DataError(
        cat(origin, ": \"xxh3\" is \"", quotation(text), "\"; expected a checksum of 16 hexadecimal digits"));
  return *checksum;
}

std::string text_checksum(const std::string& text) {
  Digest digest;
  digest.add(text.data(), text.size());
  return digest.text();
}

uint64_t file_checksum(const std::filesystem::path& file) {
  const InputFile in(file);
  return checksum_of_range(in, 0, in.bytes());
}

uint64_t checksum_of_range(const InputFile& file, int64_t begin, int64_t count) {
  constexpr int64_t kBlockBytes = int64_t{4} << 20;
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

Digest digest_of_spread_blocks(const std::filesystem::path& file, int64_t blocks) {
  constexpr int64_t kBlockBytes = int64_t{64} << 10;
  const InputFile in(file);
  Digest digest;
  std::vector<char> block(kBlockBytes);
  const auto add = [&](int64_t offset) {
    const int64_t got = in.read_some(offset, block.data(), kBlockBytes);
    digest.add(block.data(), static_cast<size_t>(got));
  };
  if (in.bytes() <= blocks * kBlockBytes) {
    for (int64_t offset = 0; offset < in.bytes(); offset += kBlockBytes) add(offset);
  } else {
    const int64_t room = in.bytes() - kBlockBytes;
    for (int64_t i = 0; i < blocks; ++i)
      add(room / (blocks - 1) * i + room % (blocks - 1) * i / (blocks - 1));
  }
  return digest;
}

}  // namespace trireme
