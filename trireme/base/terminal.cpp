#include "trireme/base/terminal.h"

#include <algorithm>
#include <sys/ioctl.h>
#include <unistd.h>

#include "trireme/base/environment.h"

namespace trireme {

int terminal_columns(int descriptor) {
  if (::isatty(descriptor) != 1) return 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return static_cast<int>(std::clamp<int64_t>(environment_integer("COLUMNS").value_or(0), 0, 10'000));
}

}  // namespace trireme
