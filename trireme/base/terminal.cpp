#include "trireme/base/terminal.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include "trireme/base/environment.h"

namespace trireme {

int terminal_columns(int descriptor) {
  if (::isatty(descriptor) != 1) return 0;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string text = environment("COLUMNS").value_or("");
  int columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  return std::clamp(columns, 0, 10'000);
}

}  // namespace trireme
