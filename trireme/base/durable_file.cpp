#include "trireme/base/durable_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/file_error.h"
#include "trireme/base/sizes.h"

namespace trireme {

void write_durable(const std::filesystem::path& file, const std::string& text) {
  const auto fail = [&](const char* doing) {
    throw_file_error(cat(file.string(), ": cannot ", doing, " ", text.size(), " bytes (",
                         format_bytes(static_cast<int64_t>(text.size())), ")"),
                     errno);
  };
  const FileDescriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!out.is_open()) fail("open it to write");
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(out.get(), text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail("write");
    done += static_cast<size_t>(wrote);
  }
  if (::fsync(out.get()) != 0 && errno != EINVAL) fail("sync");  // EINVAL: a device that has nothing to sync
}

void copy_durable(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::ifstream in(from, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw_file_error(cat(from.string(), ": cannot read"), errno);
  write_durable(to, text.str());
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
