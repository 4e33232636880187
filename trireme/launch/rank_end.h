// How a rank ended, and its activity before the end.
#pragma once

#include <deque>
#include <string>
#include <sys/types.h>

#include "trireme/base/json.h"

namespace trireme {

// The state of a rank when the launcher looked at it.
struct RankLook {
  bool stopped = false;      // state T: somebody stopped it (SIGSTOP)
  bool known = false;        // the rank told its activity; the fields below describe it
  bool waiting = false;      // for other ranks, in a collective
  double still_seconds = 0;  // since its activity changed; in a wait, since the wait began
  std::string doing = {};    // "in all_to_all of group 'ulysses' for 12 s, step 7, layer 3 backward"
};

struct RankEnd {
  int rank = 0;
  std::string host;
  pid_t pid = -1;
  int code = 0;                        // exit code, if signal is 0
  int signal = 0;                      // that killed it
  bool asked = false;                  // the launcher had asked it to end (SIGTERM)
  bool killed = false;                 // it did not end when asked to, and the launcher killed it
  double waited_seconds = 0;           // length of its last wait for other ranks
  RankLook look;                       // at the end; if asked to end, just before the request
  std::deque<std::string> last_lines;  // of stderr

  bool failed() const { return code != 0 || signal != 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

// As launchers send it to each other.
Json to_json(const RankEnd& end);
// Throws DataError, which names `origin`.
RankEnd parse_rank_end(const Json& json, const std::string& origin);

}  // namespace trireme
