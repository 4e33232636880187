#include "trireme/train/run_directory.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/tensorboard_events.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kPrefix = "step-";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const char* begin = name.data() + 5;
  const char* end = name.data() + name.size();
  int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end || step < 0) return std::nullopt;
  return step;
}

// A reader that lists the folder meanwhile sees the whole checkpoint or none of it.
void remove_checkpoint(const fs::path& path) {
  fs::path doomed = path;
  doomed += ".tmp-removed";
  std::error_code ignored;
  fs::remove_all(doomed, ignored);
  std::error_code error;
  fs::rename(path, doomed, error);
  fs::remove_all(error ? path : doomed, ignored);
}

}  // namespace

fs::path RunDirectory::checkpoint(int64_t step) const {
  return checkpoints() / cat(kPrefix, step);
}
fs::path RunDirectory::temporary(int64_t step) const {
  return checkpoints() / cat(kPrefix, step, ".tmp");
}

std::vector<CheckpointEntry> RunDirectory::list() const {
  std::vector<CheckpointEntry> all;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoints(), error))
    if (const auto step = step_of(entry.path().filename().string())) all.push_back({*step, entry.path()});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return all;
}

std::optional<CheckpointEntry> RunDirectory::newest_valid(
    const std::function<void(const CheckpointEntry&, const std::string&)>& on_broken) const {
  std::vector<CheckpointEntry> all = list();
  std::reverse(all.begin(), all.end());
  for (const CheckpointEntry& entry : all) {
    try {
      verify_checkpoint(entry.path);
      return entry;
    } catch (const DataError& error) {
      on_broken(entry, error.what());
    }
  }
  return std::nullopt;
}

void RunDirectory::prepare() const {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  if (error) throw DataError(cat(checkpoints().string(), ": cannot make the folder: ", error.message()));
  remove_stale();
}

void RunDirectory::remove_stale() const {
  std::error_code error;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(checkpoints(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && name.find(".tmp") != std::string::npos) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove_all(path, error);
}

void RunDirectory::keep_newest(int64_t limit) const {
  if (limit <= 0) return;
  const std::vector<CheckpointEntry> all = list();
  for (size_t i = 0; i + static_cast<size_t>(limit) < all.size(); ++i) remove_checkpoint(all[i].path);
}

void RunDirectory::remove_events() const {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(events(), error))
    if (entry.path().filename().string().starts_with(kEventFilePrefix)) files.push_back(entry.path());
  for (const fs::path& file : files) fs::remove(file, error);
}

void RunDirectory::clear() const {
  for (const CheckpointEntry& entry : list()) remove_checkpoint(entry.path);
  std::error_code ignored;
  fs::remove(metrics(), ignored);
  remove_events();
}

}  // namespace trireme
