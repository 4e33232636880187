#include "tests/fuzz/fuzz_target.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdlib.h>

#include "trireme/base/error.h"

namespace fs = std::filesystem;

namespace trireme::fuzz {
namespace {

constexpr size_t kLongestMessage = 4000;

class Scratch {
 public:
  Scratch() {
    const fs::path shared = "/dev/shm";
    std::error_code ignored;
    std::string name =
        ((fs::is_directory(shared, ignored) ? shared : fs::temp_directory_path()) / "trireme-fuzz-XXXXXX")
            .string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch& operator=(Scratch&&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

[[noreturn]] void refuse(const char* what, const std::string& message) {
  std::fprintf(stderr, "fuzz: %s: %s\n", what, message.substr(0, 2 * kLongestMessage).c_str());
  std::abort();
}

}  // namespace

const fs::path& scratch_folder() {
  static const Scratch scratch;
  return scratch.path();
}

fs::path write_input(const std::string& name, Bytes bytes) {
  fs::path file = scratch_folder() / name;
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return file;
}

void taken_or_refused(std::string_view name, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.exit_code() != 65 && error.exit_code() != 78)
      refuse("neither DataError nor ConfigError", message);
    if (message.find(name) == std::string::npos) refuse("the refusal does not name the file", message);
    if (message.size() > kLongestMessage) refuse("the refusal is too long", message);
  } catch (const std::exception& error) {
    refuse("another exception", error.what());
  }
}

}  // namespace trireme::fuzz
