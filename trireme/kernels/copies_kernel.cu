// A thread copies 16 bytes, or one element where not all of a launch's copies consist of 16 bytes.
#include "trireme/kernels/copies_kernel.h"
#include "trireme/kernels/gpu_code.h"

namespace trireme {
namespace {

constexpr int kCopyThreads = 256;

// By value, among the kernel's parameters: below the 4 KiB that they may take.
struct Copies {
  StridedCopy copies[kCopiesOfLaunch];
  unsigned first_block[kCopiesOfLaunch + 1];
};

template <int words, typename Word>
__global__ void __launch_bounds__(kCopyThreads) copy_runs(Copies all) {
  int copy_index = 0;
  while (all.first_block[copy_index + 1] <= blockIdx.x) ++copy_index;
  const StridedCopy& copy = all.copies[copy_index];
  constexpr unsigned kAccess_bytes = sizeof(Word) * words;
  const unsigned run_accesses = static_cast<unsigned>(copy.run / kAccess_bytes);
  const unsigned access = (blockIdx.x - all.first_block[copy_index]) * kCopyThreads + threadIdx.x;
  const unsigned run = access / run_accesses, inner = static_cast<unsigned>(copy.inner);
  if (run >= static_cast<unsigned>(copy.outer) * inner) return;
  const int64_t o = run / inner, i = run % inner, byte = int64_t{access % run_accesses} * kAccess_bytes;
  const char* const from =
      static_cast<const char*>(copy.from) + o * copy.from_outer + i * copy.from_inner + byte;
  char* const to = static_cast<char*>(copy.to) + o * copy.to_outer + i * copy.to_inner + byte;
  store_global(reinterpret_cast<Word*>(to), load_global<words>(reinterpret_cast<const Word*>(from)));
}

bool consists_of_16(const StridedCopy& copy) {
  return (reinterpret_cast<uintptr_t>(copy.from) | reinterpret_cast<uintptr_t>(copy.to)) % 16 == 0 &&
         (copy.from_outer | copy.from_inner | copy.to_outer | copy.to_inner | copy.run) % 16 == 0;
}

}  // namespace

void launch_copies(const StridedCopy* copies, int64_t count, int element_bytes, void* stream) {
  for (int64_t begin = 0; begin < count; begin += kCopiesOfLaunch) {
    Copies all;
    const int some = static_cast<int>(count - begin < kCopiesOfLaunch ? count - begin : kCopiesOfLaunch);
    bool wide = true;
    for (int i = 0; i < some; ++i) wide = wide && consists_of_16(copies[begin + i]);
    int64_t blocks = 0;
    for (int i = 0; i < some; ++i) {
      const StridedCopy& copy = all.copies[i] = copies[begin + i];
      const int64_t accesses = copy.outer * copy.inner * copy.run / (wide ? 16 : element_bytes);
      all.first_block[i] = static_cast<unsigned>(blocks);
      blocks += (accesses + kCopyThreads - 1) / kCopyThreads;
    }
    for (int i = some; i <= kCopiesOfLaunch; ++i) all.first_block[i] = static_cast<unsigned>(blocks);
    if (blocks == 0) continue;
    const auto kernel = wide                 ? copy_runs<8, uint16_t>
                        : element_bytes == 2 ? copy_runs<1, uint16_t>
                                             : copy_runs<1, uint32_t>;
    launch(kernel, {blocks, kCopyThreads}, stream, all);
  }
}

}  // namespace trireme
