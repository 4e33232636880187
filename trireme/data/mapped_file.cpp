#include "trireme/data/mapped_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

MappedFile::MappedFile(const std::filesystem::path& file) : path_(file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw DataError(cat(file.string(), ": cannot be opened: ", std::strerror(errno)));
  struct stat status {};
  void* mapped = nullptr;
  int failure = ::fstat(descriptor, &status) != 0 ? errno : 0;
  if (failure == 0 && !S_ISREG(status.st_mode)) failure = EINVAL;
  if (failure == 0 && status.st_size > 0) {
    mapped = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) failure = errno;
  }
  ::close(descriptor);
  if (failure != 0) throw DataError(cat(file.string(), ": cannot be mapped: ", std::strerror(failure)));
  data_ = static_cast<const std::byte*>(mapped);
  bytes_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(bytes_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace trireme
