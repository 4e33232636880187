#include "trireme/launch/report.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/rank_list.h"

namespace trireme {
namespace {

std::string name_of(const RankEnd& end) {
  return cat("rank ", end.rank, " (process ", end.pid, " on ", end.host, ")");
}

std::string how_it_hung(const RankEnd& end) {
  std::string text = "hung: ";
  if (end.look.stopped) {
    text += "it was stopped (SIGSTOP)";
    if (end.look.known) text += cat(", ", end.look.doing);
  } else if (end.look.known) {
    text += end.look.doing;
  } else {
    text += "it did not end when it was asked to";
  }
  return text + "; the other ranks waited for it";
}

// What to change stands in the rank's own words, which this terminal has shown.
bool said_what_to_change(const RankEnd& end, RanksShown shown) {
  return shown == RanksShown::here && end.signal == 0 && end.code == ConfigError::kExitCode &&
         std::ranges::any_of(end.last_lines, [](const std::string& line) {
           return line.find("ConfigError: ") != std::string::npos;
         });
}

std::string how_it_ended(const RankEnd& end, RanksShown shown) {
  std::string text;
  if (end.killed && end.look.stopped) {
    text = "was stopped (SIGSTOP), did not go on after the others had ended, and was killed";
  } else if (end.signal != 0) {
    text = cat("was killed by signal ", end.signal, " (", ::strsignal(end.signal), ")");
    if (end.signal == SIGKILL && !end.killed) text += "; if nobody sent it, the machine was out of memory";
  } else {
    text = cat("ended with code ", end.code);
    for (const ExitMeaning& one : exit_meanings())
      if (one.code == end.code) text += cat(" (", one.meaning, ")");
  }
  if (end.look.known && !said_what_to_change(end, shown)) text += cat("; it was ", end.look.doing);
  return text;
}

std::string quote(const RankEnd& end) {
  std::string text;
  for (const std::string& line : end.last_lines) text += cat("    ", line, "\n");
  return text;
}

// The other rank that says most: the first with output that ended unasked, else the first with output.
const RankEnd* witness(const RankEnd& culprit, const std::vector<RankEnd>& ends) {
  const RankEnd* found = nullptr;
  for (const RankEnd& end : ends) {
    if (end.rank == culprit.rank || end.last_lines.empty()) continue;
    if (!end.asked) return &end;
    if (found == nullptr) found = &end;
  }
  return found;
}

}  // namespace

std::string report(const Outcome& outcome, const std::vector<RankEnd>& ends, RanksShown shown) {
  if (!outcome.culprit) return "";
  const RankEnd& end = *outcome.culprit;
  std::string text =
      cat("trireme launch: ", name_of(end), " ", outcome.hung ? how_it_hung(end) : how_it_ended(end, shown));
  const auto ended_with_it = [&](const RankEnd& other) { return other.rank != end.rank && other.asked; };
  if (std::any_of(ends.begin(), ends.end(), ended_with_it)) text += "; the other ranks were ended";
  if (!outcome.hung && said_what_to_change(end, shown)) return text + ". Its message is above.\n";
  text += end.last_lines.empty() ? ". It wrote nothing to stderr.\n" : ". Its last lines on stderr:\n";
  text += quote(end);
  const RankEnd* other = outcome.hung || end.last_lines.empty() ? witness(end, ends) : nullptr;
  if (other != nullptr) text += cat("  ", name_of(*other), ", which ended with it, wrote:\n", quote(*other));
  return text;
}

std::string report_of_killed(const std::vector<RankEnd>& ends, const std::string& after) {
  std::set<int> ranks;
  std::string details;
  for (const RankEnd& end : ends) {
    if (!end.killed) continue;
    ranks.insert(end.rank);
    details += cat("    ", name_of(end), ": ",
                   end.look.stopped ? "stopped (SIGSTOP)"
                   : end.look.known ? end.look.doing
                                    : "it told nothing of what it was doing",
                   "\n");
  }
  if (ranks.empty()) return "";
  return cat("trireme launch: ", rank_list(ranks), " did not end ", after, " and ",
             ranks.size() == 1 ? "was" : "were", " killed:\n", details);
}

}  // namespace trireme
