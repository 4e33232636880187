#include "trireme/plan/memory_error.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "trireme/base/error.h"

namespace trireme {
namespace {

constexpr size_t kMessageBytes = 1500;  // after which no figure of a message comes
constexpr size_t kShownBytes = 300;
constexpr auto kNotFound = std::string_view::npos;

// "2.00 GiB", "0 bytes", "5KB" is none.
std::optional<int64_t> amount_at(std::string_view text) {
  double value = 0;
  const auto [rest, code] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (code != std::errc() || !(value >= 0) || value > 1e15) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  if (!text.starts_with(' ')) return std::nullopt;
  text.remove_prefix(1);
  constexpr std::pair<std::string_view, double> kUnits[] = {{"bytes", 1},    {"B", 1},        {"KiB", 0x1p10},
                                                            {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                                                            {"PiB", 0x1p50}};
  for (const auto& [unit, bytes] : kUnits)
    if (text.starts_with(unit) && value * bytes < 1e18) return static_cast<int64_t>(value * bytes);
  return std::nullopt;
}

std::optional<int64_t> amount_after(std::string_view text, std::string_view words) {
  const size_t offset = text.find(words);
  return offset == kNotFound ? std::nullopt : amount_at(text.substr(offset + words.size()));
}

// "... 19.75 MiB free": the two words before.
std::optional<int64_t> amount_before(std::string_view text, std::string_view words) {
  for (size_t offset = text.find(words); offset != kNotFound; offset = text.find(words, offset + 1)) {
    const size_t unit = text.rfind(' ', offset == 0 ? 0 : offset - 1);
    if (unit == kNotFound || unit == 0 || unit >= offset) continue;
    const size_t number = text.find_last_of(" (;", unit - 1);
    if (const auto amount = amount_at(text.substr(number == kNotFound ? 0 : number + 1))) return amount;
  }
  return std::nullopt;
}

std::optional<int64_t> number_after(std::string_view text, std::string_view words) {
  const size_t offset = text.find(words);
  if (offset == kNotFound) return std::nullopt;
  int64_t value = 0;
  const char* begin = text.data() + offset + words.size();
  const auto [rest, code] = std::from_chars(begin, text.data() + text.size(), value);
  return code == std::errc() && value >= 0 ? std::optional(value) : std::nullopt;
}

struct Wording {
  const char* words;
  MemoryErrorKind kind;
  const char* also = "";  // within the next 80 bytes
};
constexpr Wording kWordings[] = {
    {"out of memory. Tried to allocate", MemoryErrorKind::torch_allocator},
    {" memory: asked for ", MemoryErrorKind::trireme},
    {"DefaultCPUAllocator: ", MemoryErrorKind::host_allocator},
    {"std::bad_alloc", MemoryErrorKind::host_allocator},
    {"Cannot allocate memory", MemoryErrorKind::host_allocator},
    {"out of host memory: ", MemoryErrorKind::host_allocator},
    {"Unable to allocate ", MemoryErrorKind::host_allocator, " for an array"},
    {"Cuda failure", MemoryErrorKind::nccl, "out of memory"},
    {"Failed to CUDA ", MemoryErrorKind::nccl, "alloc"},
    {"CUBLAS_STATUS_ALLOC_FAILED", MemoryErrorKind::gpu_library},
    {"CUDNN_STATUS_ALLOC_FAILED", MemoryErrorKind::gpu_library},
    {"CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", MemoryErrorKind::gpu_library},
    {"CUSOLVER_STATUS_ALLOC_FAILED", MemoryErrorKind::gpu_library},
    {"HIPBLAS_STATUS_ALLOC_FAILED", MemoryErrorKind::gpu_library},
    {"CUDA error: out of memory", MemoryErrorKind::cuda_call},
    {"HIP error: out of memory", MemoryErrorKind::cuda_call},
    {"cuda runtime error (2) : out of memory", MemoryErrorKind::cuda_call},
    {"CUDA_ERROR_OUT_OF_MEMORY", MemoryErrorKind::cuda_call},
    {"cudaErrorMemoryAllocation", MemoryErrorKind::cuda_call},
    {"hipErrorOutOfMemory", MemoryErrorKind::cuda_call},
    {"Out of memory: Killed process", MemoryErrorKind::killed},
    {"oom-kill", MemoryErrorKind::killed},
    {"oom_kill", MemoryErrorKind::killed},
    {"OOMKilled", MemoryErrorKind::killed},
    {"return code = -9", MemoryErrorKind::killed},
    {"exitcode: -9", MemoryErrorKind::killed},
    {"exitcode : -9", MemoryErrorKind::killed},
    {"exit code 137", MemoryErrorKind::killed},
    {"exit code: 137", MemoryErrorKind::killed},
    {"Exit Code: 137", MemoryErrorKind::killed},
    {"exitcode: 137", MemoryErrorKind::killed},
    {"exited with code 137", MemoryErrorKind::killed},
    {"Signal 9 (SIGKILL)", MemoryErrorKind::killed},
    {"SIGKILL: 9", MemoryErrorKind::killed},
    {"nobody sent it, the machine was out of memory", MemoryErrorKind::killed},
    {"is killed by signal: Killed", MemoryErrorKind::killed},
    {"exit status 137", MemoryErrorKind::killed},
};

struct Found {
  MemoryErrorKind kind{};
  size_t offset = kNotFound;  // in the flat log
};

// The message that says most, the first of its kind: others follow from it.
std::optional<Found> find_message(const PastedLog& log) {
  std::optional<Found> best;
  const auto offer = [&](const Found& found) {
    if (!best || std::pair(found.kind, found.offset) < std::pair(best->kind, best->offset)) best = found;
  };
  const std::string_view flat = log.flat;
  for (const Wording& wording : kWordings) {
    size_t offset = flat.find(wording.words);
    while (offset != kNotFound && flat.substr(offset, 80).find(wording.also) == kNotFound)
      offset = flat.find(wording.words, offset + 1);
    if (offset != kNotFound) offer({wording.kind, offset});
  }
  // A shell says it in a line of its own.
  for (const LogLine& line : log.lines)
    if (line.text == "Killed" || line.text == "MemoryError" || line.text.starts_with("Killed  ")) {
      offer({line.text == "MemoryError" ? MemoryErrorKind::host_allocator : MemoryErrorKind::killed,
             line.begin});
      break;
    }
  return best;
}

// Bytes of each process that the message lists on the device: "Process 12 has 3.00 GiB memory in use.", which
// inside a container is this one too, and "this process has 7.00 GiB memory in use".
void read_processes(std::string_view message, MemoryError& error) {
  error.process = amount_after(message, "this process has ");
  std::vector<int64_t> listed;
  for (size_t offset = message.find("Process "); offset != kNotFound;
       offset = message.find("Process ", offset + 1)) {
    const auto bytes = amount_after(message.substr(offset, 80), " has ");
    if (bytes && message.substr(offset, 120).find("memory in use") != kNotFound) listed.push_back(*bytes);
  }
  if (!error.process && !listed.empty()) {
    // This one holds PyTorch's bytes and a little more.
    const int64_t reserved = error.allocated.value_or(0) + error.unallocated.value_or(0);
    auto this_process = listed.end();
    for (auto each = listed.begin(); each != listed.end(); ++each)
      if (*each >= reserved && (this_process == listed.end() || *each < *this_process)) this_process = each;
    if (this_process != listed.end()) {
      error.process = *this_process;
      listed.erase(this_process);
    }
  }
  if (listed.empty()) return;
  int64_t sum = 0;
  for (const int64_t bytes : listed) sum += std::min(bytes, int64_t{1} << 50);
  error.others = sum;
}

void read_torch_allocator(std::string_view message, MemoryError& error) {
  error.asked = amount_after(message, "Tried to allocate ");
  error.capacity = amount_before(message, " total capacity");
  if (!error.capacity) error.capacity = amount_after(message, "has a total capacity of ");
  if (!error.capacity) error.capacity = amount_after(message, "has a total capacty of ");
  error.free = amount_after(message, "of which ");
  if (!error.free) error.free = amount_before(message, " free");
  error.allowed = amount_before(message, " allowed;");
  error.allocated = amount_before(message, " is allocated by PyTorch");
  if (!error.allocated) error.allocated = amount_before(message, " already allocated");
  error.private_pools = amount_before(message, " allocated in private pools");
  error.unallocated = amount_before(message, " is reserved by PyTorch but unallocated");
  if (!error.unallocated) error.unallocated = amount_before(message, " cached)");
  const auto reserved = amount_before(message, " reserved in total by PyTorch");
  if (reserved && error.allocated) error.unallocated = std::max<int64_t>(0, *reserved - *error.allocated);
  if (const auto gpu = number_after(message, "GPU "); gpu && *gpu < 1024) error.gpu = static_cast<int>(*gpu);
  read_processes(message, error);
}

void read_trireme(std::string_view before, std::string_view message, MemoryError& error) {
  error.space = before.ends_with("host") ? MemorySpace::host : MemorySpace::device;
  error.asked = amount_after(message, "asked for ");
  if (const auto bytes = number_after(message, " (")) error.asked = bytes;
  const size_t holds = message.find("this rank holds ");
  for (const MemoryCategory category : kAllMemoryCategories) {
    const std::string name = name_of(category);
    if (message.substr(0, holds).find(cat(" more for ", name, ";")) != kNotFound) error.category = category;
    if (holds == kNotFound) continue;
    const std::string_view list = message.substr(holds, message.find(". ", holds) - holds);
    error.held[category] = amount_after(list, cat(" ", name, " ")).value_or(0);
  }
  if (holds != kNotFound) error.allocated = error.held.total();
}

void read_host_allocator(std::string_view message, MemoryError& error) {
  error.space = MemorySpace::host;
  if (const auto bytes = number_after(message, "tried to allocate ")) error.asked = bytes;
  if (const auto bytes = amount_after(message, "Unable to allocate ")) error.asked = bytes;
}

// torchrun names the rank beside the exit code, or some words before it.
void read_killed(std::string_view before, std::string_view message, MemoryError& error) {
  error.space = MemorySpace::host;
  const auto kib = number_after(message, "anon-rss:");
  if (kib && *kib < (int64_t{1} << 50)) error.process = *kib * 1024;
  auto rank = number_after(message.substr(0, 60), "local_rank: ");
  if (!rank)
    rank = number_after(before.substr(before.size() - std::min<size_t>(before.size(), 40)), "rank : ");
  if (rank && *rank < 1'000'000) error.rank = static_cast<int>(*rank);
}

// "host:pid:thread [3] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'"
void read_nccl(std::string_view before, std::string_view message, MemoryError& error) {
  error.asked = number_after(message.substr(0, 80), "alloc ");
  const size_t device = before.rfind('[');
  if (device == kNotFound || before.size() - device > 80 || before.find("NCCL WARN", device) == kNotFound)
    return;
  if (const auto gpu = number_after(before.substr(device), "["); gpu && *gpu < 1024)
    error.gpu = static_cast<int>(*gpu);
}

void read_cuda_call(std::string_view message, MemoryError& error) {
  if (message.substr(0, 160).find("CachingHostAllocator") == kNotFound) return;
  error.kind = MemoryErrorKind::pinned_host;
  error.space = MemorySpace::host;
}

// The frames of the rank that failed, up to the message; where all come after it, those.
void read_frames(const PastedLog& log, size_t message_line, MemoryError& error) {
  const std::vector<TracebackFrame> frames = traceback_frames(log);
  const int rank = log.lines[message_line].rank;
  const auto of_rank = [&](const TracebackFrame& frame) { return frame.rank == rank; };
  const bool before = std::ranges::any_of(
      frames, [&](const TracebackFrame& frame) { return of_rank(frame) && frame.log_line < message_line; });
  const TracebackFrame* last = nullptr;
  for (const TracebackFrame& frame : frames) {
    if (!of_rank(frame) || (before && frame.log_line >= message_line)) continue;
    last = &frame;
    if (!frame.of_torch()) error.asked_by = frame;
  }
  if (rank >= 0) error.rank = rank;
  if (error.kind != MemoryErrorKind::cuda_call || last == nullptr) return;
  // A CUDA call that pins host memory fails with the same words as one that allocates on the device.
  for (const std::string* text : {&last->code, &last->function})
    if (text->find("pin_memory") != std::string::npos || text->find("pin_tensor") != std::string::npos) {
      error.kind = MemoryErrorKind::pinned_host;
      error.space = MemorySpace::host;
    }
}

}  // namespace

MemoryError read_memory_error(const std::string& text, const std::string& origin) {
  const PastedLog log = read_log(text);
  const auto found = find_message(log);
  if (!found)
    throw DataError(
        cat(origin, ": ", log.lines.size(),
            " lines without an out-of-memory message. Expected the whole output of the rank that "
            "failed, with a line like \"CUDA out of memory. Tried to allocate 2.00 GiB\" (also "
            "HIP, XPU, NCCL, cuBLAS), \"CUDA error: out of memory\", \"out of device memory: asked "
            "for\", \"DefaultCPUAllocator: can't allocate memory\", std::bad_alloc, \"Cannot "
            "allocate memory\", or a launcher's exit code -9 or 137"));
  MemoryError error;
  error.kind = found->kind;
  const size_t line = log.line_at(found->offset);
  // From the message to the next one of its kind, which another rank may have written.
  std::string_view message = std::string_view(log.flat).substr(found->offset, kMessageBytes);
  if (const size_t next = message.find("Tried to allocate", message.find("Tried to allocate") + 1);
      found->kind == MemoryErrorKind::torch_allocator && next != kNotFound)
    message = message.substr(0, next);
  const std::string_view before = std::string_view(log.flat).substr(0, found->offset);
  switch (found->kind) {
    case MemoryErrorKind::torch_allocator:
      read_torch_allocator(message, error);
      break;
    case MemoryErrorKind::trireme:
      read_trireme(before, message, error);
      break;
    case MemoryErrorKind::host_allocator:
      read_host_allocator(message, error);
      break;
    case MemoryErrorKind::killed:
      read_killed(before, message, error);
      break;
    case MemoryErrorKind::nccl:
      read_nccl(before, message, error);
      break;
    case MemoryErrorKind::cuda_call:
      read_cuda_call(message, error);
      break;
    case MemoryErrorKind::gpu_library:
    case MemoryErrorKind::pinned_host:  // no wording has it
      break;
  }
  read_frames(log, line, error);
  // Long messages are those that a terminal breaks.
  const size_t begin = log.lines[line].begin;
  const bool broken = error.kind == MemoryErrorKind::torch_allocator || line + 1 == log.lines.size();
  error.message = log.flat.substr(
      begin, std::min(kShownBytes, (broken ? log.flat.size() : log.lines[line + 1].begin) - begin));
  return error;
}

}  // namespace trireme
