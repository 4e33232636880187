// How a rank ended, and what is known of what it did before.
#pragma once

#include <deque>
#include <string>
#include <sys/types.h>

namespace trireme {

// What the launcher saw of a rank when it looked at it.
struct RankLook {
  bool stopped = false;      // state T: somebody stopped it (SIGSTOP)
  bool known = false;        // it told its activity; the fields below are of it
  bool waiting = false;      // for other ranks, in a collective
  double still_seconds = 0;  // since it did anything else; of one that waits, since the wait began
  std::string doing = {};    // "in all_to_all of group 'ulysses' for 12 s, step 7, layer 3 backward"
};

struct RankEnd {
  int rank = 0;
  std::string host;
  pid_t pid = -1;
  int code = 0;                        // of exit, when signal is 0
  int signal = 0;                      // that killed it
  bool asked = false;                  // before it ended, the launcher had asked it to (SIGTERM)
  bool killed = false;                 // it did not end when asked to, and the launcher killed it
  double waited_seconds = 0;           // how long it waited for others, the last time it did
  RankLook look;                       // at the end; of one that was asked to end, just before
  std::deque<std::string> last_lines;  // of stderr

  bool failed() const { return code != 0 || signal != 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

}  // namespace trireme
