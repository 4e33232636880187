#include "tests/support/ranks.h"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/comm/thread_world.h"

namespace trireme::testing {

std::string name_of(Backend backend) {
  return backend == Backend::threads ? "threads" : backend == Backend::gloo ? "gloo" : "memory";
}

void on_threads(int ranks, const std::function<void(int rank)>& body) {
  // c10d's flight recorder, one for the process, is not safe where several threads have their own backends.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  threads.clear();  // joins them
  if (first) std::rethrow_exception(first);
}

namespace {

// What processes do, without the processes: each thread joins through a store and has its own connections.
void run_joined(ExchangeBackend backend, int ranks, const std::function<void(World&)>& body,
                std::chrono::milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  on_threads(ranks, [&](int rank) {
    const RankIdentity identity{.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks};
    const auto world = join_world(identity, store, {.timeout = timeout, .backend = backend});
    body(*world);
  });
}

}  // namespace

void run_ranks(Backend backend, int ranks, const std::function<void(World&)>& body,
               std::chrono::milliseconds timeout) {
  if (backend == Backend::threads) {
    run_ranks_as_threads(ranks, body, timeout);
  } else {
    run_joined(backend == Backend::gloo ? ExchangeBackend::gloo : ExchangeBackend::memory, ranks, body,
               timeout);
  }
}

}  // namespace trireme::testing
