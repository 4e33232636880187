#include "trireme/base/make_folder.h"

#include <system_error>

#include "trireme/base/file_error.h"

namespace trireme {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_file_error(folder.string() + ": cannot make the folder", error.value());
}

}  // namespace trireme
