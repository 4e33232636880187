// A folder for one test, removed with the object.
#pragma once

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <stdlib.h>
#include <string>
#include <system_error>

namespace trireme::testing {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trireme-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make the folder " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

  // Writes a file, and the folders above it; returns its path.
  std::filesystem::path write(const std::filesystem::path& name, const std::string& bytes) const {
    std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  // How many files are there, in folders below too.
  size_t files() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace trireme::testing
