// Every rank writes its share of a checkpoint into the run's folder, so every machine must see the same one.
// That is found out before the first step, not at the first save: every rank must read in run.lock what rank 0
// wrote.
#pragma once

#include <filesystem>
#include <optional>

#include "trireme/comm/agreement.h"
#include "trireme/train/run_lock.h"

namespace trireme {

// Rank 0 has the lock. Throws ConfigError on all ranks unless all read its text (where rank 0 could write one). A
// rank looks again for some seconds, for a network file system may show a change late. Collective.
void check_output_dir_is_shared(const std::filesystem::path& output_dir, const std::optional<RunLock>& lock,
                                int rank, Agreement& agreement);

}  // namespace trireme
