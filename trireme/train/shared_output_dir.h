// Every rank writes its share of a checkpoint into the run's folder, so every machine must see the same one. That
// is found out before the first step, not at the first save: every rank must read in run.lock what rank 0 wrote.
#pragma once

#include <filesystem>
#include <string>

#include "trireme/comm/agreement.h"

namespace trireme {

// `lock_text` is RunLock::text on rank 0, "" on the others; without one nothing is compared. Throws ConfigError on all ranks unless all
// read it. A rank looks again for some seconds, for a network file system may show a change late. Collective.
void check_output_dir_is_shared(const std::filesystem::path& output_dir, const std::string& lock_text,
                                int rank, Agreement& agreement);

}  // namespace trireme
