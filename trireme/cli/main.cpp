// The program: finds the command, runs it, and turns errors into messages and exit codes.
#include <csignal>
#include <exception>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/library_defaults.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/out_of_memory.h"

namespace {

int tell(const trireme::Error& error) {
  std::cerr << "trireme: " << error.kind() << ": " << error.what() << std::endl;
  return error.exit_code();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    trireme::install_cpu_caching_allocator();
    trireme::set_library_defaults();
    // A file at its size limit is then an error of write(), which says which file, and not a silent end.
    std::signal(SIGXFSZ, SIG_IGN);
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
      std::cout << trireme::commands_help();
      return words.empty() ? trireme::ConfigError("").exit_code() : 0;
    }
    if (words[0] == "--version" || words[0] == "-V") {
      std::cout << "trireme " << TRIREME_VERSION << "\n";
      return 0;
    }
    return trireme::find_command(words[0]).run({words.begin() + 1, words.end()});
  } catch (const trireme::Error& error) {
    return tell(error);
  } catch (const c10::OutOfMemoryError& error) {
    return tell(trireme::out_of_memory_error(error));
  } catch (const std::exception& error) {
    std::cerr << "trireme: unexpected error: " << error.what() << std::endl;
    return trireme::InternalError("").exit_code();
  }
}
