// One run at a time writes to an output folder. Rank 0 holds a lock on OUTPUT_DIR/run.lock, which the kernel
// releases however the process ends. The file stays, and is empty after a clean end. Readers (export, eval,
// TensorBoard) take no lock.
//
//   flock           local disks; NFS and Lustre where they lock for all machines
//   no such locks   (ENOLCK, EOPNOTSUPP) the file's text decides. If its holder lives on this machine (the
//                   same boot, the same start of its process), this run is refused. A holder on another
//                   machine cannot be checked, so the run goes on with a warning.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "trireme/base/file_descriptor.h"
#include "trireme/base/run_folder.h"

namespace trireme {

// What run.lock of this folder holds; empty where it cannot be read.
std::string read_run_lock(const std::filesystem::path& output_dir);

class RunLock {
 public:
  // Makes the folder. `launch`: see RankIdentity. A holder of the same launch is an attempt that is about to
  // end, or whose machine died and whose lock its file server will free: this waits two minutes for it, and
  // then throws SystemFault. Throws ConfigError that names the holder's host, process and start time;
  // DataError when the file cannot be written.
  RunLock(const std::filesystem::path& output_dir, const std::string& launch,
          const std::function<void(const std::string&)>& note);
  ~RunLock();
  RunLock& operator=(RunLock&&) = delete;

  // What run.lock holds now; empty where it could not be written.
  const std::string& text() const { return text_; }

 private:
  std::filesystem::path file_;
  std::string text_;
  FileDescriptor lock_;
};

}  // namespace trireme
