#include "trireme/cli/standard_streams.h"

#include <csignal>
#include <fcntl.h>
#include <unistd.h>

namespace trireme {

void prepare_standard_streams() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  int descriptor = 0;
  while (descriptor >= 0 && descriptor <= STDERR_FILENO)
    descriptor = ::open("/dev/null", O_RDWR);  // the lowest free
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

}  // namespace trireme
