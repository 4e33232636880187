// What becomes of a line of .jsonl that is no document: wrong JSON, no field of text, a field that is no
// string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/enum_names.h"
#include "trireme/base/error.h"

namespace trireme {

enum class OnBadRecord {
  stop,  // an error that names every file at fault
  skip,  // the line is left out and counted
};
constexpr auto enum_names(OnBadRecord) {
  using enum OnBadRecord;
  return std::to_array<EnumName<OnBadRecord>>({{stop, "stop"}, {skip, "skip"}});
}

inline constexpr const char* kOnBadRecordHelp =
    "a .jsonl line that is no document: stop names every file at fault; skip leaves it out and counts it";

struct BadRecords {
  int64_t count = 0;
  std::vector<std::string> first;  // at most kMostNamed: "file:line: reason"

  static constexpr size_t kMostNamed = 5;
  void add(const std::string& problem) {
    ++count;
    if (first.size() < kMostNamed) first.push_back(problem);
  }
};

// For people: how many were left out, the first of them, "and N more". Empty where none was.
inline std::vector<std::string> bad_record_lines(const BadRecords& records) {
  std::vector<std::string> lines;
  if (records.count == 0) return lines;
  lines.push_back(cat("lines that are no documents, skipped: ", records.count));
  for (const std::string& problem : records.first) lines.push_back("  " + problem);
  if (const auto more = records.count - static_cast<int64_t>(records.first.size()); more > 0)
    lines.push_back(cat("  and ", more, " more"));
  return lines;
}

}  // namespace trireme
