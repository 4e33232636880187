// One output stream of one rank kept in a file, byte for byte.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme {

// Appends to its file. A file that cannot be written is told once, on the launcher's stderr, and then left as it is: the
// rank's output still goes where it goes without a log.
class RankLog {
 public:
  RankLog() = default;  // keeps nothing
  explicit RankLog(const std::filesystem::path& file);
  RankLog(RankLog&& other) noexcept;
  RankLog& operator=(RankLog&&) = delete;
  ~RankLog();

  // Returns a warning, empty where all went well.
  std::string write(std::string_view bytes);

 private:
  std::string give_up();

  std::filesystem::path file_;
  int descriptor_ = -1;
  bool given_up_ = true;
};

}  // namespace trireme
