// How state is best moved to a disk and back: SpillFile as it is (two threads past the page cache), two
// threads through the page cache, which they empty behind themselves, and io_uring past it through liburing.
// In one interleaved run: GiB/s each way, and the processor's seconds a GiB, which the training step loses.
//
//   offload_bench --dir DIR [--span_mib 64] [--spans 16] [--repeats 5]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <iostream>
#include <liburing.h>
#include <map>
#include <memory>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/memory/file_transfer.h"
#include "trireme/memory/nameless_file.h"
#include "trireme/memory/spill_file.h"

namespace trireme {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Of the whole process, what the kernel does for it included.
double cpu_seconds() {
  rusage used = {};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct Free {
  void operator()(char* data) const { std::free(data); }
};
using Buffer = std::unique_ptr<char, Free>;

// Touched, and aligned as O_DIRECT asks.
Buffer buffer(int64_t bytes, int value) {
  auto* data = static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(bytes)));
  std::memset(data, value, static_cast<size_t>(bytes));
  return Buffer(data);
}

// Spans of one size at fixed offsets of a file; transfer returns when all are moved.
class Storage {
 public:
  virtual ~Storage() = default;
  Storage& operator=(Storage&&) = delete;
  virtual void transfer(bool writes, const std::vector<Buffer>& spans, int64_t span_bytes) = 0;
};

class Spill final : public Storage {
 public:
  Spill(const std::string& folder, int64_t spans, int64_t span_bytes) : file_(folder, 0) {
    for (int64_t i = 0; i < spans; ++i) regions_.push_back(file_.reserve(span_bytes));
  }
  void transfer(bool writes, const std::vector<Buffer>& spans, int64_t) override {
    std::vector<SpillFile::Transfer> under_way;
    for (size_t i = 0; i < spans.size(); ++i)
      under_way.push_back(writes ? file_.write(regions_[i], spans[i].get(), nullptr)
                                 : file_.read(regions_[i], spans[i].get()));
    for (SpillFile::Transfer& one : under_way) one.wait();
  }

 private:
  SpillFile file_;
  std::vector<SpillFile::Region> regions_;
};

// A file of its own, past the page cache, its blocks taken.
class DirectFile : public NamelessFile {
 public:
  DirectFile(const std::string& folder, int64_t bytes) : NamelessFile(folder) {
    const int flags = ::fcntl(descriptor(), F_GETFL);
    if (::fcntl(descriptor(), F_SETFL, flags | O_DIRECT) != 0)
      throw ConfigError(cat(folder, ": the file system has no O_DIRECT: ", std::strerror(errno)));
    if (::fallocate(descriptor(), 0, 0, bytes) != 0)
      throw DataError(cat(folder, ": cannot take ", bytes, " bytes: ", std::strerror(errno)));
  }
};

// What SpillFile does where a file system has no O_DIRECT.
class ThroughPageCache final : public Storage {
 public:
  ThroughPageCache(const std::string& folder, int64_t spans, int64_t span_bytes)
      : file_(folder), bytes_(file_.descriptor(), FileTransfer::Access::page_cache) {
    if (::fallocate(file_.descriptor(), 0, 0, spans * span_bytes) != 0)
      throw DataError(cat(folder, ": cannot take ", spans * span_bytes, " bytes: ", std::strerror(errno)));
  }
  void transfer(bool writes, const std::vector<Buffer>& spans, int64_t span_bytes) override {
    const auto serve = [&](size_t first) {
      for (size_t i = first; i < spans.size(); i += 2) {
        const int64_t offset = static_cast<int64_t>(i) * span_bytes;
        const std::string problem = writes ? bytes_.write(offset, spans[i].get(), span_bytes)
                                           : bytes_.read(offset, spans[i].get(), span_bytes);
        if (!problem.empty()) {
          std::cerr << "offload_bench: " << problem << "\n";
          std::exit(1);
        }
      }
    };
    const std::jthread other(serve, 1);
    serve(0);
  }

 private:
  NamelessFile file_;
  FileTransfer bytes_;
};

class Ring final : public Storage {
 public:
  Ring(const std::string& folder, int64_t spans, int64_t span_bytes) : file_(folder, spans * span_bytes) {
    if (const int error = io_uring_queue_init(kDepth, &ring_, 0); error != 0)
      throw ConfigError(cat("no io_uring here: ", std::strerror(-error)));
  }
  ~Ring() override { io_uring_queue_exit(&ring_); }
  void transfer(bool writes, const std::vector<Buffer>& spans, int64_t span_bytes) override {
    const int64_t total = static_cast<int64_t>(spans.size()) * span_bytes;
    int64_t asked = 0, flying = 0;
    while (asked < total || flying > 0) {
      while (asked < total && flying < kDepth) {
        const int64_t span = asked / span_bytes, inside = asked % span_bytes;
        const auto step = static_cast<unsigned>(std::min(kStepBytes, span_bytes - inside));
        char* data = spans[static_cast<size_t>(span)].get() + inside;
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        if (writes)
          io_uring_prep_write(entry, file_.descriptor(), data, step, static_cast<uint64_t>(asked));
        else
          io_uring_prep_read(entry, file_.descriptor(), data, step, static_cast<uint64_t>(asked));
        io_uring_sqe_set_data64(entry, step);
        asked += step;
        ++flying;
      }
      io_uring_submit(&ring_);
      io_uring_cqe* done = nullptr;
      const int error = io_uring_wait_cqe(&ring_, &done);
      if (error != 0 || done->res != static_cast<int>(done->user_data))
        throw DataError(cat("io_uring moved ", error != 0 ? error : done->res, " of a step's bytes"));
      io_uring_cqe_seen(&ring_, done);
      --flying;
    }
  }

 private:
  static constexpr unsigned kDepth = 8;
  static constexpr int64_t kStepBytes = kMiB;
  DirectFile file_;
  io_uring ring_ = {};
};

struct Times {
  std::vector<double> gib_per_second, cpu_seconds_per_gib;
};

std::string spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f (%.2f - %.2f)", values[values.size() / 2], values.front(),
                values.back());
  return text;
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> given{{"--span_mib", "64"}, {"--spans", "16"}, {"--repeats", "5"}};
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  if (argc % 2 == 0 || given["--dir"].empty())
    throw ConfigError("usage: offload_bench --dir DIR [--span_mib 64] [--spans 16] [--repeats 5]");
  const int64_t span_bytes = std::stoll(given["--span_mib"]) * kMiB, spans = std::stoll(given["--spans"]);
  const std::string folder = given["--dir"];

  std::vector<Buffer> source, target;
  for (int64_t i = 0; i < spans; ++i) {
    source.push_back(buffer(span_bytes, static_cast<int>(i + 1)));
    target.push_back(buffer(span_bytes, 0));
  }
  std::vector<std::pair<std::string, std::unique_ptr<Storage>>> storages;
  storages.emplace_back("SpillFile: two threads, O_DIRECT, 8 MiB",
                        std::make_unique<Spill>(folder, spans, span_bytes));
  storages.emplace_back("two threads, page cache",
                        std::make_unique<ThroughPageCache>(folder, spans, span_bytes));
  storages.emplace_back("io_uring, O_DIRECT, 8 x 1 MiB", std::make_unique<Ring>(folder, spans, span_bytes));

  const double gib = static_cast<double>(spans * span_bytes) / static_cast<double>(1024 * kMiB);
  std::vector<std::array<Times, 2>> times(storages.size());
  for (int64_t repeat = 0; repeat < std::stoll(given["--repeats"]); ++repeat)
    for (size_t w = 0; w < storages.size(); ++w)
      for (const bool writes : {true, false}) {
        const double begin = now_seconds(), cpu = cpu_seconds();
        storages[w].second->transfer(writes, writes ? source : target, span_bytes);
        Times& of = times[w][writes ? 0 : 1];
        of.gib_per_second.push_back(gib / (now_seconds() - begin));
        of.cpu_seconds_per_gib.push_back((cpu_seconds() - cpu) / gib);
        for (size_t i = 0; !writes && i < source.size(); ++i) {
          if (std::memcmp(source[i].get(), target[i].get(), static_cast<size_t>(span_bytes)) != 0)
            throw InternalError(cat(storages[w].first, ": what was read is not what was written"));
          std::memset(target[i].get(), 0, static_cast<size_t>(span_bytes));
        }
      }
  std::cout << "| way | write, GiB/s | read, GiB/s | processor seconds a GiB written | ... read |\n"
               "|---|---:|---:|---:|---:|\n";
  for (size_t w = 0; w < storages.size(); ++w) {
    const auto& [write, read] = times[w];
    std::cout << "| " << storages[w].first << " | " << spread(write.gib_per_second) << " | "
              << spread(read.gib_per_second) << " | " << spread(write.cpu_seconds_per_gib) << " | "
              << spread(read.cpu_seconds_per_gib) << " |\n";
  }
  return 0;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    return trireme::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "offload_bench: " << error.what() << "\n";
    return 1;
  }
}
