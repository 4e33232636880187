// A rank tells its launcher what it is doing, through one page of memory that both map:
//
//   launcher   ActivityReader, whose descriptor the rank inherits as TRIREME_ACTIVITY_FD; read() at any time
//   rank       RankActivity::from_environment() -> phase, step, layer, collective: a few stores each, no system call, no
//              lock. The reader sees whole states alone, also of a rank that was stopped or killed.
//
// Without the variable the page is the process's own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

enum class RankPhase : uint8_t { starting, connecting, preparing, training, evaluating, saving, ending };
enum class PassDirection : uint8_t { none, forward, backward };

// What a rank was doing when it was looked at; seconds count to that look.
struct RankActivityState {
  RankPhase phase = RankPhase::starting;
  int64_t step = 0;    // the optimizer step at work, from 1; 0: before the first
  int64_t layer = -1;  // from 0; -1: in none
  PassDirection direction = PassDirection::none;
  std::string action;    // "all_to_all of group 'ulysses'"; empty: none yet
  bool waiting = false;  // inside that action; else it was the last one
  double seconds = 0;    // since the state last changed; while waiting, since the wait began
};

// One sentence without a full stop: "in all_to_all of group 'ulysses' for 12 s, step 7, layer 3 backward".
std::string describe(const RankActivityState& state);
// "step 7, layer 3 backward"; empty before the first step.
std::string describe_progress(const RankActivityState& state);

// What the page holds.
struct ActivityPage;

// The rank's side. One thread writes.
class RankActivity {
 public:
  RankActivity();  // a page of its own
  // Maps the page and closes the descriptor. Throws ConfigError when it is no activity page.
  explicit RankActivity(int descriptor);
  static RankActivity from_environment();

  void set_phase(RankPhase phase);
  void set_step(int64_t step);
  void set_layer(int64_t layer, PassDirection direction);
  void leave_layers() { set_layer(-1, PassDirection::none); }
  // The rank waits for others from here to end_wait: "all_to_all", "ulysses". Text beyond 95 bytes is cut.
  void begin_wait(std::string_view action, std::string_view group = {});
  void end_wait();

  RankActivityState state() const;

 private:
  std::shared_ptr<ActivityPage> page_;
};

// A wait from here to the end of the scope.
class ActivityWait {
 public:
  ActivityWait(RankActivity& activity, std::string_view action, std::string_view group = {})
      : activity_(activity) {
    activity_.begin_wait(action, group);
  }
  ~ActivityWait() { activity_.end_wait(); }
  ActivityWait& operator=(ActivityWait&&) = delete;

 private:
  RankActivity& activity_;
};

// The launcher's side of one rank.
class ActivityReader {
 public:
  // A new page, of a size that no rank can change. Throws ConfigError where the system gives none.
  ActivityReader();
  ~ActivityReader();
  ActivityReader(ActivityReader&& other) noexcept;
  ActivityReader& operator=(ActivityReader&&) = delete;
  // For the rank to inherit as TRIREME_ACTIVITY_FD; closed on exec unless the child says otherwise.
  int descriptor() const { return descriptor_; }
  // Once the rank has it; the page stays.
  void close_descriptor();
  // Nothing before the rank has mapped the page: it may be another program.
  std::optional<RankActivityState> read() const;

 private:
  int descriptor_ = -1;
  std::shared_ptr<ActivityPage> page_;
};

}  // namespace trireme
