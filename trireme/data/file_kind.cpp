#include "trireme/data/file_kind.h"

#include <array>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/input_file.h"

namespace trireme {
namespace {

using namespace std::string_view_literals;

struct Kind {
  std::string_view first_bytes;
  const char* what;
};
constexpr std::array<Kind, 10> kKinds = {{
    {"\x1f\x8b"sv, "is compressed by gzip: unpack it"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd: unpack it"},
    {"\xfd\x37zXZ\0"sv, "is compressed by xz: unpack it"},
    {"BZh91AY&SY"sv, "is compressed by bzip2: unpack it"},
    {"\x04\x22\x4d\x18"sv, "is compressed by lz4: unpack it"},
    {"7z\xbc\xaf\x27\x1c"sv, "is a 7z archive: unpack it"},
    {"PK\3\4"sv, "is a zip archive or an office document: unpack it, or save it as text"},
    {"%PDF-"sv, "is a PDF: extract its text first, as with pdftotext"},
    {"\xff\xfe"sv, "is UTF-16: convert it to UTF-8, as with iconv"},
    {"\xfe\xff"sv, "is UTF-16: convert it to UTF-8, as with iconv"},
}};

}  // namespace

std::optional<std::string> why_not_text(const std::filesystem::path& file) {
  constexpr int64_t kHeadBytes = 8192;
  const InputFile in(file, "text");
  std::string head(kHeadBytes, ' ');
  head.resize(static_cast<size_t>(in.read_some(0, head.data(), kHeadBytes)));
  for (const Kind& kind : kKinds)
    if (head.starts_with(kind.first_bytes)) return kind.what;
  if (head.find('\0') != std::string::npos)
    return "is binary (a zero byte in its first 8 KiB); expected text";
  return std::nullopt;
}

}  // namespace trireme
