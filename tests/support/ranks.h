// Ranks for tests: threads of this process, joined by the in-process group, by Gloo over loopback, or by the
// memory that they read as ranks in processes do.
#pragma once

#include <functional>
#include <string>

#include "trireme/comm/world.h"

namespace trireme::testing {

enum class Backend { threads, gloo, memory };

std::string name_of(Backend backend);

// Runs `body` for each rank on a thread that may make its own backends; throws the first error that a rank
// threw.
void on_threads(int ranks, const std::function<void(int rank)>& body);

// Runs `body` on `ranks` threads, each with its own World; throws the first error that a rank threw.
void run_ranks(Backend backend, int ranks, const std::function<void(World&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(30));

}  // namespace trireme::testing
