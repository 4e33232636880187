#include "trireme/base/input_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/file_error.h"

namespace trireme {

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

InputFile::InputFile(const std::filesystem::path& file, const std::string& expected) : path_(file) {
  const std::string what = quotation(file.string()) + ": cannot be opened", after = "; expected " + expected;
  const auto refuse = [&](const std::string& why) { throw DataError(cat(what, ": ", why, after)); };
  if (file.native().find('\0') != std::string::npos) refuse("its name has a zero byte");
  descriptor_ = FileDescriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!descriptor_.is_open()) throw_file_error(what, errno, after);
  struct stat status {};
  if (::fstat(descriptor(), &status) != 0) throw_file_error(what, errno, after);
  if (!S_ISREG(status.st_mode))
    refuse(S_ISDIR(status.st_mode)    ? "it is a folder"
           : S_ISFIFO(status.st_mode) ? "it is a pipe, not a regular file"
                                      : "it is not a regular file");
  bytes_ = status.st_size;
}

int64_t InputFile::read_some(int64_t offset, void* to, int64_t count) const {
  auto* const begin = static_cast<std::byte*>(to);
  int64_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(descriptor(), begin + done, static_cast<size_t>(count - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(cat(path_.string(), ": cannot be read at byte ", offset + done), errno);
    if (got == 0) break;
    done += got;
    read_bytes_ += got;
  }
  return done;
}

void InputFile::read(int64_t offset, void* to, int64_t count) const {
  const int64_t got = read_some(offset, to, count);
  if (got != count)
    throw DataError(cat(path_.string(), ": ends at byte ", offset + got, ", and had ", bytes_,
                        " bytes when it was opened: it was cut or replaced meanwhile"));
}

std::string InputFile::whole(int64_t limit_bytes) const {
  // Reads to the end and ignores the reported size: files in /proc report 0.
  std::string text;
  for (int64_t room = std::min(bytes_, limit_bytes) + 1;; room = std::max<int64_t>(room, 1 << 16)) {
    const auto before = static_cast<int64_t>(text.size());
    text.resize(static_cast<size_t>(before + room));
    const int64_t got = read_some(before, text.data() + before, room);
    text.resize(static_cast<size_t>(before + got));
    if (before + got > limit_bytes)
      throw DataError(cat(path_.string(), ": ", std::max(bytes_, before + got), " bytes; at most ",
                          limit_bytes, " are read of such a file"));
    if (got < room) return text;
  }
}

}  // namespace trireme
