// A file without a name: nobody can open it, and the system takes its blocks back when the process ends,
// however it ends.
#pragma once

#include <filesystem>

namespace trireme {

class NamelessFile {
 public:
  enum class Creation {
    automatic,  // O_TMPFILE; where the file system has none, unlinked
    unlinked,   // made with a name that is removed at once
  };
  // Open for reading and writing, empty. ConfigError when the folder is missing or cannot be written.
  explicit NamelessFile(const std::filesystem::path& folder, Creation creation = Creation::automatic);
  ~NamelessFile();
  NamelessFile& operator=(NamelessFile&&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

}  // namespace trireme
