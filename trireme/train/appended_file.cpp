#include "trireme/train/appended_file.h"

#include <cstring>
#include <unistd.h>
#include <utility>

#include "trireme/base/folder_entries.h"
#include "trireme/base/write_all.h"

namespace trireme {

std::string append_whole(int descriptor, std::string_view bytes) {
  const Written written = write_all(descriptor, bytes.data(), bytes.size());
  if (written.error == 0) return {};
  [[maybe_unused]] const int cut =
      ::ftruncate(descriptor, ::lseek(descriptor, 0, SEEK_END) - static_cast<off_t>(written.bytes));
  return std::strerror(written.error);
}

std::string AppendedFile::write(std::string_view bytes) {
  if (file_.is_open() && look_.due() && is_unlinked(file_.get())) {
    was_removed_ = true;
    file_.close();
  }
  if (!file_.is_open())
    if (std::string problem = open(); !problem.empty()) return problem;
  if (std::string problem = append_whole(file_.get(), bytes); !problem.empty()) return problem;
  return std::exchange(was_removed_, false) ? removed_ : "";
}

}  // namespace trireme
