// A rank tells its launcher what it is doing, through one page of memory that both map:
//
//   launcher   ActivityReader, whose descriptor the rank inherits as TRIREME_ACTIVITY_FD; read() at any time
//   rank       RankActivity::from_environment() -> phase, step, layer, collective: a few stores each, no
//              system call, no lock. The reader sees only complete states, even of a stopped or killed rank.
//
// Without the variable the page is private to the process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/base/file_descriptor.h"

namespace trireme {

enum class RankPhase : uint8_t { starting, connecting, preparing, training, evaluating, saving, ending };
enum class PassDirection : uint8_t { none, forward, backward };

// The activity of a rank at the time of a read; `seconds` ends at that time.
struct RankActivityState {
  RankPhase phase = RankPhase::starting;
  int64_t step = 0;    // the current optimizer step, from 1; 0: before the first step
  int64_t layer = -1;  // from 0; -1: in no layer
  PassDirection direction = PassDirection::none;
  std::string action;    // "all_to_all of group 'ulysses'"; empty: none yet
  bool waiting = false;  // inside `action`; else `action` was the last wait
  double seconds = 0;    // since the state last changed; while waiting, since the wait began
};

// One sentence without a full stop: "in all_to_all of group 'ulysses' for 12 s, step 7, layer 3 backward".
std::string describe(const RankActivityState& state);
// "step 7, layer 3 backward"; empty before the first step.
std::string describe_progress(const RankActivityState& state);

// The content of the page.
struct ActivityPage;

// The rank's side. Only one thread may write.
class RankActivity {
 public:
  RankActivity();  // a private page
  // Maps the page and closes the descriptor. Throws ConfigError if the descriptor is no activity page.
  explicit RankActivity(int descriptor);
  static RankActivity from_environment();

  void set_phase(RankPhase phase);
  void set_step(int64_t step);
  void set_layer(int64_t layer, PassDirection direction);
  void leave_layers() { set_layer(-1, PassDirection::none); }
  // The rank waits for other ranks until end_wait(): "all_to_all", "ulysses". Text beyond 95 bytes is cut.
  void begin_wait(std::string_view action, std::string_view group = {});
  // The rank waits again in its last action. On a GPU a collective's call only queues it: the host waits for
  // the other ranks where it reads a result.
  void resume_wait();
  void end_wait();

  RankActivityState state() const;

 private:
  std::shared_ptr<ActivityPage> page_;
};

// A wait that lasts until the end of the scope.
class ActivityWait {
 public:
  ActivityWait(RankActivity& activity, std::string_view action, std::string_view group = {})
      : activity_(activity) {
    activity_.begin_wait(action, group);
  }
  explicit ActivityWait(RankActivity& activity) : activity_(activity) { activity_.resume_wait(); }
  ~ActivityWait() { activity_.end_wait(); }
  ActivityWait& operator=(ActivityWait&&) = delete;

 private:
  RankActivity& activity_;
};

// The launcher's side of one rank.
class ActivityReader {
 public:
  // Creates a page whose size no rank can change. Throws ConfigError if the system refuses the page.
  ActivityReader();
  // The rank inherits it as TRIREME_ACTIVITY_FD. It is closed on exec unless the child changes that.
  int descriptor() const { return descriptor_.get(); }
  // Call this once the rank has the descriptor; the page stays mapped.
  void close_descriptor() { descriptor_.close(); }
  // nullopt until the rank has mapped the page; another program never maps it.
  std::optional<RankActivityState> read() const;

 private:
  FileDescriptor descriptor_;
  std::shared_ptr<ActivityPage> page_;
};

}  // namespace trireme
