#include "trireme/train/shared_output_dir.h"

#include <chrono>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/machine_identity.h"

namespace trireme {

void check_output_dir_is_shared(const std::filesystem::path& output_dir, const std::optional<RunLock>& lock,
                                int rank, Agreement& agreement) {
  using std::chrono::steady_clock;
  constexpr std::chrono::seconds kPatience(5);
  const std::string expected = agreement.first_text(lock ? lock->text() : "");
  if (expected.empty()) return;
  agreement.all_or_none(cat("looking for ", output_dir.string(), "/", kRunLockFile), [&] {
    const auto deadline = steady_clock::now() + kPatience;
    while (read_run_lock(output_dir) != expected) {
      if (steady_clock::now() >= deadline)
        throw ConfigError(cat("--output_dir ", output_dir.string(), ": rank ", rank, " on ", host_name(),
                              " does not find there what rank 0 has just written; give a folder that every "
                              "machine sees (NFS, Lustre, ...), for every rank writes its share of a "
                              "checkpoint"));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
}

}  // namespace trireme
