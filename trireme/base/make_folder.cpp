#include "trireme/base/make_folder.h"

#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/file_error.h"

namespace trireme {

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_file_error(folder.string() + ": cannot make the folder", error.value());
}

void make_asked_folder(const std::filesystem::path& folder, const std::string& flag) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw ConfigError(cat(flag, folder.string(), ": cannot make the folder: ", error.message()));
}

}  // namespace trireme
