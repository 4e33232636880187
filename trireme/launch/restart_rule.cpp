#include "trireme/launch/restart_rule.h"

#include <algorithm>
#include <csignal>
#include <string_view>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/last_words.h"
#include "trireme/base/stop_request.h"

namespace trireme {
namespace {

const ExitMeaning* meaning_of(int code) {
  const auto& all = exit_meanings();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.code == code; });
  return found == all.end() ? nullptr : &*found;
}

bool says(const RankEnd& end, std::string_view words) {
  return std::any_of(end.last_lines.begin(), end.last_lines.end(),
                     [&](const std::string& line) { return line.find(words) != std::string::npos; });
}

// A SystemFault has the code of a lost peer, so that schedulers' scripts need one code. It is the rank's error.
bool lost_a_peer(const RankEnd& end) {
  const SystemFault fault("");
  return end.signal == 0 && end.code == CommError::kExitCode && !says(end, cat(fault.kind(), ": "));
}

bool may_be_cured(const RankEnd& end) {
  const ExitMeaning* meaning = meaning_of(end.code);
  return end.signal != 0 || (meaning != nullptr && meaning->restart_may_cure);
}

bool points_at_another(const RankEnd& end) {
  return says(end, kAnotherSaysWhy);
}

// Whether the rank only did what it was asked to do, whatever its code.
bool complied(const RankEnd& end) {
  if (asked_to_stop(end) != 0) return true;
  if (!end.asked) return false;
  if (end.signal != 0) return end.killed || end.signal == SIGTERM;
  const ExitMeaning* meaning = meaning_of(end.code);
  return meaning == nullptr || meaning->restart_may_cure;
}

bool failed_by_itself(const RankEnd& end) {
  return end.failed() && !lost_a_peer(end) && !complied(end);
}

template <typename Accept>
const RankEnd* first(const std::vector<RankEnd>& ends, const Accept& accept) {
  const auto found = std::find_if(ends.begin(), ends.end(), accept);
  return found == ends.end() ? nullptr : &*found;
}

// Whether other ranks waited for this rank, which stood still for most of that time.
bool hung(const RankEnd& end, const std::vector<RankEnd>& ends) {
  if (!end.asked) return false;
  bool given_up = false;
  double waited_seconds = 0;
  for (const RankEnd& other : ends) {
    if (!lost_a_peer(other) || other.asked) continue;
    given_up = true;
    waited_seconds = std::max(waited_seconds, other.waited_seconds);
  }
  if (!given_up) return false;
  if (end.look.stopped) return true;
  if (end.look.known && end.look.waiting) return false;
  return end.killed || (end.look.known && end.look.still_seconds >= std::max(1.0, waited_seconds / 2));
}

const RankEnd* find_hung(const std::vector<RankEnd>& ends) {
  const RankEnd* worst = nullptr;
  const auto weight = [](const RankEnd& end) {
    return std::make_pair(end.look.stopped, end.look.still_seconds);
  };
  for (const RankEnd& end : ends)
    if (hung(end, ends) && (worst == nullptr || weight(end) > weight(*worst))) worst = &end;
  return worst;
}

const RankEnd* find_culprit(const std::vector<RankEnd>& ends) {
  const auto by_itself = [](const RankEnd& end) { return failed_by_itself(end) && !points_at_another(end); };
  if (const RankEnd* end = first(ends, by_itself)) return end;
  if (const RankEnd* end = first(ends, failed_by_itself)) return end;
  if (const RankEnd* end = find_hung(ends)) return end;
  const auto gave_up = [](const RankEnd& end) { return lost_a_peer(end) && !end.asked; };
  if (const RankEnd* end = first(ends, [&](const RankEnd& e) { return gave_up(e) && !points_at_another(e); }))
    return end;
  if (const RankEnd* end = first(ends, gave_up)) return end;
  return first(ends, [](const RankEnd& end) { return end.failed(); });
}

}  // namespace

const std::vector<ExitMeaning>& exit_meanings() {
  static const std::vector<ExitMeaning> all{
      {0, "done", false},
      {ConfigError::kExitCode, "ConfigError: what was asked cannot be done", false},
      {DataError::kExitCode, "DataError: a file does not hold what it should", false},
      {InternalError::kExitCode, "InternalError: a bug in Trireme", false},
      {CommError::kExitCode,
       "CommError: another rank did not answer; SystemFault: a machine failed; or asked to stop", true},
  };
  return all;
}

int asked_to_stop(const RankEnd& end) {
  if (end.asked) return 0;
  if (contains(kStopSignals, end.signal)) return end.signal;
  return lost_a_peer(end) && says(end, kAskedToStop) ? SIGTERM : 0;
}

Outcome judge(const std::vector<RankEnd>& ends, bool stop_asked) {
  const RankEnd* culprit = find_culprit(ends);
  if (culprit == nullptr) return {};
  const RankEnd& end = *culprit;
  Outcome outcome;
  outcome.hung = !failed_by_itself(end) && hung(end, ends);
  const bool ended_as_asked = complied(end) && !end.killed;
  outcome.code = outcome.hung || ended_as_asked ? CommError::kExitCode : end.exit_code();
  if (stop_asked) {
    for (const RankEnd& one : ends)
      if (one.killed) outcome.code = one.exit_code();
    if (failed_by_itself(end)) outcome.culprit = end;
    return outcome;
  }
  outcome.culprit = end;
  outcome.may_restart = outcome.hung || (!complied(end) && may_be_cured(end));
  for (const RankEnd& one : ends) {
    const ExitMeaning* meaning = meaning_of(one.code);
    if (one.signal == 0 && one.failed() && meaning && !meaning->restart_may_cure) outcome.may_restart = false;
  }
  return outcome;
}

}  // namespace trireme
