#include "trireme/train/tensorboard_events.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/machine_identity.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Now, or a second after the last file there: a process may follow within a second, or on a machine whose
// clock is late.
int64_t file_seconds(const fs::path& folder) {
  auto seconds = static_cast<int64_t>(unix_seconds());
  const size_t prefix = std::strlen(kEventFilePrefix);
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    if (!name.starts_with(kEventFilePrefix)) continue;
    int64_t earlier = 0;
    std::from_chars(name.data() + prefix, name.data() + name.size(), earlier);
    seconds = std::max(seconds, earlier + 1);
  }
  return seconds;
}

std::string file_name(const fs::path& folder) {
  std::array<char, 32> seconds{};  // of equal width: names are sorted as text
  std::snprintf(seconds.data(), seconds.size(), "%010lld", static_cast<long long>(file_seconds(folder)));
  return cat(kEventFilePrefix, seconds.data(), ".", host_name(), ".", ::getpid(), ".0");
}

double number_of(const Json& value) {
  return value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
}

std::string begin_events(const fs::path& folder, int64_t first_step, FileDescriptor& events) try {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return error.message();
  const fs::path file = folder / file_name(folder);
  events = FileDescriptor(::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!events.is_open()) return std::strerror(errno);
  const double now = unix_seconds();
  std::string problem = append_whole(events.get(), event_record(file_version_event(now)) +
                                                       event_record(session_start_event(now, first_step)));
  if (!problem.empty()) {
    fs::remove(file, error);
    events.close();
  }
  return problem;
} catch (const Error& error) {
  return error.what();  // the folder cannot be read
}

}  // namespace

std::vector<EventScalar> event_scalars(const Json& record) {
  const std::string prefix = "eval_";
  const std::string group = record.contains("eval_loss") ? "eval/" : "train/";
  std::vector<EventScalar> scalars;
  for (const auto& [name, value] : record.items()) {
    if (name == "step") continue;
    if (value.is_number() || value.is_boolean()) {
      scalars.push_back(
          {group + (name.starts_with(prefix) ? name.substr(prefix.size()) : name), number_of(value)});
    } else if (name == "memory") {
      for (const auto& [category, bytes] : value.items())
        scalars.push_back({"memory/" + category, bytes.get<double>()});
    } else if (name == "by_position") {
      for (const Json& bucket : value)
        if (bucket.at("target_tokens").get<int64_t>() > 0)
          scalars.push_back({cat("eval_loss_by_position/", bucket.at("begin").get<int64_t>(), "-",
                                 bucket.at("end").get<int64_t>() - 1),
                             bucket.at("loss").get<double>()});
    }
  }
  return scalars;
}

TensorBoardEvents::TensorBoardEvents(const fs::path& folder, int64_t first_step, double look_seconds)
    : events_(
          [folder, first_step](FileDescriptor& events) { return begin_events(folder, first_step, events); },
          "the file was removed; it is begun anew", look_seconds) {}

std::string TensorBoardEvents::write(const Json& record) {
  return events_.write(
      event_record(scalars_event(unix_seconds(), record.at("step").get<int64_t>(), event_scalars(record))));
}

}  // namespace trireme
