#include "trireme/train/run_directory.h"

#include <algorithm>
#include <system_error>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/make_folder.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/data/set_fingerprint.h"
#include "trireme/train/checkpoint_manifest.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/tensorboard_events.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

// True for "train-0123456789abcdef" (of .bin, .idx and .set.json), not for a set that someone else put there.
bool is_name_of_tokens(const std::string& prefix) {
  for (const std::string& kind : {std::string("train-"), std::string("eval-")})
    if (prefix.starts_with(kind) && prefix.size() == kind.size() + 16 &&
        prefix.find_first_not_of("0123456789abcdef", kind.size()) == std::string::npos)
      return true;
  return false;
}

// True however the paths are written. `input` is a text, or a set by its prefix or by one of its files.
bool is_file_of(const fs::path& file, const fs::path& input) {
  std::error_code error;  // a missing file is not the same
  for (const fs::path& other :
       {input, indexed_dataset_bin(input), indexed_dataset_idx(input), set_fingerprint_file(input)})
    if (fs::equivalent(file, other, error) && !error) return true;
  return false;
}

void remove_or_throw(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) throw_file_error(cat(path.string(), ": cannot be removed"), error.value());
}

// A reader that lists the folder meanwhile sees the whole checkpoint or none of it.
void remove_checkpoint(const fs::path& path) {
  fs::path doomed = path;
  doomed += ".tmp-removed";
  std::error_code error;
  fs::remove_all(doomed, error);
  fs::rename(path, doomed, error);
  if (error) return remove_or_throw(path);
  // On NFS, a file that a reader has open may stay for a while; remove_stale removes it later.
  fs::remove_all(doomed, error);
}

}  // namespace

fs::path RunDirectory::checkpoint(int64_t step) const {
  return checkpoints() / cat(kStepPrefix, step);
}
fs::path RunDirectory::temporary(int64_t step) const {
  return checkpoints() / cat(kStepPrefix, step, ".tmp");
}

std::vector<CheckpointEntry> RunDirectory::list() const {
  std::vector<CheckpointEntry> all;
  for (const fs::path& path : entries_of(checkpoints()))
    if (const auto step = step_of_folder(path)) all.push_back({*step, path});
  std::ranges::sort(all, {}, &CheckpointEntry::step);
  return all;
}

void RunDirectory::prepare() const {
  make_folder(checkpoints());
  remove_stale();
}

void RunDirectory::remove_stale() const {
  for (const fs::path& path : entries_of(checkpoints())) {
    const std::string name = path.filename().string();
    std::error_code stays;  // until the next call
    if (name.starts_with(kStepPrefix) && name.find(".tmp") != std::string::npos) fs::remove_all(path, stays);
  }
  for (const fs::path& path : entries_of(data())) {
    const std::string name = path.filename().string();
    std::error_code stays;
    if (is_name_of_tokens(name.substr(0, name.find('.'))) && name.find(kPartialSet) != std::string::npos)
      fs::remove(path, stays);
  }
}

void RunDirectory::publish(int64_t step) const {
  if (is_there(checkpoint(step))) remove_checkpoint(checkpoint(step));
  publish_file(temporary(step), checkpoint(step));
}

void RunDirectory::keep_newest(int64_t limit, int64_t saved, std::optional<int64_t> best) const {
  if (limit <= 0) return;
  const std::vector<CheckpointEntry> all = list();
  auto left = static_cast<int64_t>(all.size());
  for (const CheckpointEntry& entry : all) {
    if (left <= limit) return;
    if (entry.step == saved || entry.step == best) continue;
    remove_checkpoint(entry.path);
    --left;
  }
}

std::vector<std::string> RunDirectory::abandon_after(int64_t step) const {
  std::vector<std::string> names;
  for (const CheckpointEntry& entry : list()) {
    if (entry.step <= step) continue;
    const std::string first = cat(kAbandonedPrefix, entry.path.filename().string());
    std::string name = first;
    for (int i = 2; is_there(checkpoints() / name); ++i) name = cat(first, ".", i);
    std::error_code error;
    fs::rename(entry.path, checkpoints() / name, error);
    if (error) throw_file_error(cat(entry.path.string(), ": cannot be renamed to ", name), error.value());
    names.push_back(name);
  }
  if (!names.empty()) sync_folder(checkpoints());
  return names;
}

void RunDirectory::remove_events() const {
  for (const fs::path& file : entries_of(events()))
    if (file.filename().string().starts_with(kEventFilePrefix)) remove_or_throw(file);
}

void RunDirectory::clear(const std::vector<fs::path>& kept) const {
  for (const CheckpointEntry& entry : list()) remove_checkpoint(entry.path);
  for (const fs::path& path : entries_of(checkpoints()))
    if (path.filename().string().starts_with(kAbandonedPrefix)) remove_or_throw(path);
  remove_or_throw(metrics());
  remove_events();
  for (const fs::path& file : entries_of(data())) {
    const std::string name = file.filename().string();
    if (is_name_of_tokens(name.substr(0, name.find('.'))) &&
        std::ranges::none_of(kept, [&](const fs::path& input) { return is_file_of(file, input); }))
      remove_or_throw(file);
  }
}

}  // namespace trireme
