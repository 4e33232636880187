#include "trireme/cli/run_program.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <iostream>
#include <unistd.h>

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"
#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/device/machine_error.h"

namespace trireme {
namespace {

// A write to a reader that has gone, or to a file at its size limit, becomes an error of the stream and does
// not end the process. A closed stream becomes /dev/null: else a file or a connection would get its number,
// and receive the output for a reader.
void prepare_standard_streams() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= STDERR_FILENO)
    descriptor = ::open("/dev/null", O_RDWR);  // the lowest free
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

// Only the program changes defaults of libraries, never the library, and not where the user's environment
// sets a value. Before the first CUDA call and the first thread.
//   expandable_segments:True        freed GPU memory can be joined; without it, blocks of growing sizes leave
//                                   gaps.
//   TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=1000   c10d waits four times this between finding a lost peer and
//                                   ending the process; its default makes that a minute.
//   NCCL_LAUNCH_ORDER_IMPLICIT=1    communicators whose kernels may run at once can wait for each other
//                                   without an end, unless they start in one order on all GPUs: the host's.
//   TORCH_CPP_LOG_LEVEL=FATAL       c10d logs each try to connect and each lost peer, with C++ stack traces;
//                                   the CommError that follows says the same in one line.
void set_library_defaults() {
  if (!environment("PYTORCH_ALLOC_CONF") && !environment("PYTORCH_CUDA_ALLOC_CONF"))
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*replace=*/0);
  c10::initLogging();
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000", /*replace=*/0);
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*replace=*/0);
}

// Without the end of main: threads of c10d may still wait for lost peers (comm/owned_backend.cpp), and must
// not outlive what that destroys.
[[noreturn]] void end_at_once(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

[[noreturn]] void tell_and_end(const Error& error) {
  std::cerr << "trireme: " << error.kind() << ": " << error.what() << std::endl;
  end_at_once(error.exit_code());
}

// Returns for an error that is none of ours.
void tell_and_end(const std::exception& error) {
  take_machine_error_before_bug(error, [](const Error& known) { tell_and_end(known); });
  if (const auto* ours = dynamic_cast<const Error*>(&error)) tell_and_end(*ours);
  std::cerr << "trireme: unexpected error: " << error.what() << std::endl;
}

// An exception that left a thread. That of c10d which watches NCCL throws so for a fault of the GPU and for a
// lost peer.
[[noreturn]] void end_of_a_thread() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const c10::DistBackendError& error) {
    take_machine_error(error, [](const Error& known) { tell_and_end(known); });
    tell_and_end(
        CommError(cat("a collective failed while no call waited for it: ", error.what_without_backtrace())));
  } catch (const std::exception& error) {
    tell_and_end(error);
    std::abort();
  } catch (...) {  // the standard library's handler names its type
  }
  __gnu_cxx::__verbose_terminate_handler();
  std::abort();
}

}  // namespace

int run_program(const std::function<int()>& program) {
  std::set_terminate(end_of_a_thread);
  try {
    prepare_standard_streams();
    install_cpu_caching_allocator();
    set_library_defaults();
    return program();
  } catch (const std::exception& error) {
    tell_and_end(error);
    end_at_once(InternalError::kExitCode);
  }
}

}  // namespace trireme
