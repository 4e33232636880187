// The program: finds the command, runs it, and turns errors into messages and exit codes.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/cli/commands.h"
#include "trireme/cli/library_defaults.h"
#include "trireme/cli/standard_streams.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/out_of_memory.h"

namespace {

// Without the end of main: threads of c10d may still wait for lost peers (comm/owned_backend.cpp), and must not outlive
// what that destroys.
[[noreturn]] void tell_and_end(const trireme::Error& error) {
  std::cerr << "trireme: " << error.kind() << ": " << error.what() << std::endl;
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(error.exit_code());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    trireme::prepare_standard_streams();
    trireme::install_cpu_caching_allocator();
    trireme::set_library_defaults();
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
    tell_and_end(error);
  } catch (const std::exception& error) {
    if (const auto memory = trireme::as_out_of_memory(error)) tell_and_end(*memory);
    std::cerr << "trireme: unexpected error: " << error.what() << std::endl;
    return trireme::InternalError("").exit_code();
  }
}
