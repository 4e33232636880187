#include "trireme/base/durable_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/file_error.h"
#include "trireme/base/input_file.h"
#include "trireme/base/sizes.h"
#include "trireme/base/write_all.h"

namespace trireme {

void write_durable(const std::filesystem::path& file, const std::string& text) {
  const auto fail = [&](const char* doing, int error) {
    throw_file_error(cat(file.string(), ": cannot ", doing, " ", text.size(), " bytes (",
                         format_bytes(static_cast<int64_t>(text.size())), ")"),
                     error);
  };
  const FileDescriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!out.is_open()) fail("open it to write", errno);
  if (const int error = write_all(out.get(), text.data(), text.size()).error; error != 0)
    fail("write", error);
  if (::fsync(out.get()) != 0 && errno != EINVAL)
    fail("sync", errno);  // EINVAL: a device that has nothing to sync
}

void copy_durable(const std::filesystem::path& from, const std::filesystem::path& to) {
  const InputFile in(from);
  write_durable(to, in.whole(in.bytes()));
}

void publish_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw_file_error(cat(to.string(), ": cannot rename ", from.string(), " to it"), errno);
  sync_folder(to.parent_path());
}

void replace_file(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::path partial = file;
  partial += ".partial";
  try {
    write_durable(partial, text);
    publish_file(partial, file);
  } catch (const Error&) {
    ::unlink(partial.c_str());
    throw;
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path named = folder.empty() ? "." : folder;
  const FileDescriptor open(::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system whose folders cannot be synced.
  if (!open.is_open() || (::fsync(open.get()) != 0 && errno != EINVAL))
    throw_file_error(folder.string() + ": cannot sync the folder", errno);
}

}  // namespace trireme
