#include "trireme/cli/model_output.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "trireme/base/contains.h"
#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/make_folder.h"
#include "trireme/model/lora_files.h"
#include "trireme/model/tokenizer_files.h"
#include "trireme/train/checkpoint_names.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kInside = ".trireme.tmp-";

// Ignores the files that a killed publish_file_by_file left.
bool holds_something(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (!entry->path().filename().string().starts_with(kInside)) return true;
  return false;
}

// True for an existing folder whose name no other folder can take.
bool cannot_be_renamed(const fs::path& folder) {
  const fs::path parent = folder.parent_path();
  struct statx mount {};
  struct stat status {
  }, above{};
  if (::stat(folder.c_str(), &status) != 0 || ::stat(parent.c_str(), &above) != 0) return false;
  std::error_code error;  // a shell in a folder that is replaced would stand in none
  if (fs::equivalent(folder, fs::current_path(error), error)) return true;
  // A folder may be mounted within its file system: then the device is the same.
  const bool is_mounted = ::statx(AT_FDCWD, folder.c_str(), 0, STATX_INO, &mount) == 0 &&
                          (mount.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  return is_mounted || status.st_dev != above.st_dev || ::access(parent.c_str(), W_OK | X_OK) != 0;
}

// The path without links and a final slash, so that a name beside it can be made. Makes its parent.
fs::path checked(const fs::path& out, bool overwrite) {
  ModelOutput::check(out, overwrite);
  std::error_code error;
  fs::path folder = fs::weakly_canonical(fs::absolute(out), error);
  if (!folder.has_filename()) folder = folder.parent_path();
  make_folder(folder.parent_path());
  return folder;
}

bool is_of_a_model(const fs::path& file) {
  const std::string name = file.filename().string();
  return name == "config.json" || name == kAdapterConfigFile || name == kAdapterWeightsFile ||
         name.starts_with("model.safetensors") ||
         (name.starts_with("model-") && file.extension() == ".safetensors") || name == kChatTemplatesFolder ||
         contains(tokenizer_file_names(), name);
}

// What is private stays so. Only root can give a folder away.
void take_mode_of(const fs::path& older, const fs::path& newer) {
  struct stat status {};
  if (::stat(older.c_str(), &status) != 0) return;
  [[maybe_unused]] const int owner = ::chown(newer.c_str(), status.st_uid, status.st_gid);
  ::chmod(newer.c_str(), status.st_mode & 07777);
}

// Exchanges the names of two folders, in two steps where the file system has no exchange.
bool exchange(const fs::path& a, const fs::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  const fs::path aside = a.string() + ".old";
  if (::rename(b.c_str(), aside.c_str()) != 0) return false;
  if (::rename(a.c_str(), b.c_str()) == 0) return ::rename(aside.c_str(), a.c_str()) == 0;
  const int error = errno;
  ::rename(aside.c_str(), b.c_str());
  errno = error;
  return false;
}

}  // namespace

void ModelOutput::check(const fs::path& out, bool overwrite) {
  std::error_code error;
  if (fs::exists(out, error) && !fs::is_directory(out, error))
    throw ConfigError(cat("--out ", out.string(), " is a file; expected a folder to write the model into"));
  if (is_there(out / kManifestFile) || (is_there(out / "checkpoints") && is_there(out / "metrics.jsonl")))
    throw ConfigError(
        cat("--out ", out.string(),
            " is a run's folder or checkpoint, which a model written into it would spoil; choose "
            "another folder"));
  if (!overwrite && holds_something(out))
    throw ConfigError(
        cat("--out ", out.string(),
            " is not empty; choose another folder, or add --overwrite to replace the model in it"));
}

ModelOutput::ModelOutput(const fs::path& out, bool overwrite)
    : out_(checked(out, overwrite)),
      inside_(cannot_be_renamed(out_)),
      written_(inside_ ? out_ / kInside : fs::path(out_.string() + ".tmp-"), 0777) {}

void ModelOutput::publish_file_by_file() {
  const auto remove = [](const fs::path& file) {
    std::error_code error;
    fs::remove_all(file, error);
    if (error) throw_file_error(cat(file.string(), ": cannot be replaced"), error.value());
  };
  const fs::path config = "config.json";
  remove(out_ / config);
  sync_folder(out_);
  for (const fs::path& older : entries_of(out_))
    if (is_of_a_model(older) &&
        (older.filename() == kChatTemplatesFolder || !fs::exists(path() / older.filename())))
      remove(older);  // a folder takes no name that another one has
  for (const fs::path& file : entries_of(path()))
    if (file.filename() != config) publish_file(file, out_ / file.filename());
  publish_file(path() / config, out_ / config);
}

// Its folder would be removed with this object.
void ModelOutput::keep_older(const fs::path& name, int error) {
  fs::path kept = out_.string() + ".older";
  for (int i = 2; fs::exists(kept); ++i) kept = cat(out_.string(), ".older.", i);
  written_.keep_as(kept);
  throw_file_error(cat(out_.string(), " has the new model, and ", name.string(),
                       " of the folder that it replaces cannot move there; it stays in ", kept.string()),
                   error);
}

void ModelOutput::publish() {
  const auto fail = [&] { throw_file_error(cat(out_.string(), ": the model cannot take this name"), errno); };
  std::error_code error;
  sync_folder(path());
  if (inside_) return publish_file_by_file();
  take_mode_of(out_, path());
  const bool replaces = fs::exists(out_, error) && !fs::is_empty(out_, error);
  if (!replaces) {
    if (::rename(path().c_str(), out_.c_str()) != 0) fail();
  } else {
    // Both folders are whole at every moment. Older files that are no model's move into the new one.
    if (!exchange(path(), out_)) fail();
    for (const fs::path& older : entries_of(path())) {
      const fs::path name = older.filename();
      if (is_of_a_model(name) || fs::exists(out_ / name, error)) continue;
      if (::rename(older.c_str(), (out_ / name).c_str()) != 0) keep_older(name, errno);
    }
  }
  sync_folder(out_.parent_path());
}

}  // namespace trireme
