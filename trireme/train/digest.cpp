#include "trireme/train/digest.h"

#include <cstdio>
#include <vector>

#include "trireme/base/input_file.h"

namespace trireme {

std::string checksum_text(uint64_t checksum) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(checksum));
  return text;
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
