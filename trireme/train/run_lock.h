// One run at a time writes to an output folder. Rank 0 holds a lock of OUTPUT_DIR/run.lock, which the kernel gives back however
// the process ends; the file stays, and is empty after a clean end. Those who only read (export, eval, TensorBoard) take none.
//
//   flock           local disks; NFS and Lustre where they lock for all machines
//   no such locks   (ENOLCK, EOPNOTSUPP) the file's text decides: a holder of this machine that lives (the same boot, the same
//                   begin of its process) is refused; one of another machine cannot be asked after, so the run goes on
//                   with a warning
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace trireme {

class RunLock {
 public:
  // Makes the folder. `launch`: of RankPlace. A holder of the same launch is an attempt that is about to end: it is waited
  // for, some seconds. Throws ConfigError that names the holder's host, process and since when; DataError when the file
  // cannot be written.
  RunLock(const std::filesystem::path& output_dir, const std::string& launch,
          const std::function<void(const std::string&)>& note);
  ~RunLock();
  RunLock& operator=(RunLock&&) = delete;

 private:
  std::filesystem::path file_;
  std::string text_;  // what this object wrote there
  int descriptor_ = -1;
};

}  // namespace trireme
