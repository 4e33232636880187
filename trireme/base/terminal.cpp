#include "trireme/base/terminal.h"

#include <algorithm>
#include <sys/ioctl.h>
#include <unistd.h>

#include "trireme/base/environment.h"
#include "trireme/base/parse_whole.h"

namespace trireme {

int terminal_columns(int descriptor) {
  if (::isatty(descriptor) != 1) return 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return std::clamp(parse_whole<int>(environment("COLUMNS").value_or("")).value_or(0), 0, 10'000);
}

}  // namespace trireme
