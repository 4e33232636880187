// A table of the GPU kernels that a program runs, by CUPTI's activity records: no counters, so no permission
// is needed.
//
//   CUDA_INJECTION64_PATH=libkernel_table.so TRIREME_KERNEL_TABLE=FILE program ...
//
// CUDA's driver loads the library and calls InitializeInjection. When the program ends, FILE has a JSON line
// for each kernel and kind of copy: {"name", "calls", "seconds", "least_us", "most_us", "registers", "grid",
// "block"}.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cupti.h>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Sum {
  uint64_t calls = 0, nanoseconds = 0, least = UINT64_MAX, most = 0;
  int registers = 0, grid = 0, block = 0;

  void add(uint64_t begin, uint64_t end) {
    const uint64_t took = end - begin;
    ++calls;
    nanoseconds += took;
    least = std::min(least, took);
    most = std::max(most, took);
  }
};

struct Table {
  std::mutex mutex;
  std::map<std::string, Sum> sums;
  size_t lost = 0;
};

// Never destroyed: records come until the process is gone.
Table& table() {
  static Table* const the_table = new Table;
  return *the_table;
}

void add(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    Sum& sum = table().sums[kernel->name];
    sum.add(kernel->start, kernel->end);
    sum.registers = kernel->registersPerThread;
    sum.grid = std::max(sum.grid, kernel->gridX * kernel->gridY * kernel->gridZ);
    sum.block = kernel->blockX * kernel->blockY * kernel->blockZ;
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
    table().sums["copy of kind " + std::to_string(copy->copyKind)].add(copy->start, copy->end);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    table().sums["memset"].add(set->start, set->end);
  }
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *bytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *most_records = 0;
}

void CUPTIAPI buffer_full(CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*bytes*/,
                          size_t valid_bytes) {
  {
    const std::lock_guard lock(table().mutex);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) add(record);
    size_t lost = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS) table().lost += lost;
  }
  std::free(buffer);
}

void write_table() {
  cuptiActivityFlushAll(1);
  const char* path = std::getenv("TRIREME_KERNEL_TABLE");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  const std::lock_guard lock(table().mutex);
  for (const auto& [name, sum] : table().sums) {
    std::string quoted;
    for (const char letter : name) {
      if (letter == '"' || letter == '\\') quoted += '\\';
      quoted += letter;
    }
    std::fprintf(
        file,
        "{\"name\": \"%s\", \"calls\": %llu, \"seconds\": %.9f, \"least_us\": %.3f, \"most_us\": %.3f, "
        "\"registers\": %d, \"grid\": %d, \"block\": %d}\n",
        quoted.c_str(), static_cast<unsigned long long>(sum.calls),
        static_cast<double>(sum.nanoseconds) * 1e-9, static_cast<double>(sum.least) * 1e-3,
        static_cast<double>(sum.most) * 1e-3, sum.registers, sum.grid, sum.block);
  }
  if (table().lost > 0)
    std::fprintf(file, "{\"name\": \"records lost\", \"calls\": %zu, \"seconds\": 0}\n", table().lost);
  std::fclose(file);
}

bool succeeded(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "kernel_table: %s failed: %s\n", what, text != nullptr ? text : "unknown");
  return false;
}

}  // namespace

extern "C" int InitializeInjection() {
  if (!succeeded(cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full), "registering")) return 0;
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    if (!succeeded(cuptiActivityEnable(kind), "enabling")) return 0;
  std::atexit(write_table);
  return 1;
}
