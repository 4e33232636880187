#include "trireme/cli/run_program.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "trireme/base/error.h"
#include "trireme/cli/library_defaults.h"
#include "trireme/cli/standard_streams.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/out_of_memory.h"

namespace trireme {
namespace {

// Without the end of main: threads of c10d may still wait for lost peers (comm/owned_backend.cpp), and must
// not outlive what that destroys.
[[noreturn]] void tell_and_end(const Error& error) {
  std::cerr << "trireme: " << error.kind() << ": " << error.what() << std::endl;
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(error.exit_code());
}

}  // namespace

int run_program(const std::function<int()>& program) {
  try {
    prepare_standard_streams();
    install_cpu_caching_allocator();
    set_library_defaults();
    return program();
  } catch (const Error& error) {
    tell_and_end(error);
  } catch (const std::exception& error) {
    if (const auto memory = as_out_of_memory(error)) tell_and_end(*memory);
    std::cerr << "trireme: unexpected error: " << error.what() << std::endl;
    return InternalError("").exit_code();
  }
}

}  // namespace trireme
