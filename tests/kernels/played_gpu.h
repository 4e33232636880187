// A GPU that is played on the host, in order: blocks one after the other, threads as fibers that switch at
// barriers and shuffles, memory whose addresses the host itself cannot touch. It refuses what a real one
// would do wrong or slowly in silence: bytes outside of an array or never written, an access that is not
// aligned to its size, two threads at one element with no barrier between, a barrier or shuffle that not all
// reach, a lane that the mask does not name. And it counts the bytes of global memory.
//
//   played::Gpu gpu;                                       // one at a time in a thread
//   const auto x = gpu.array(std::vector<float>{1, 2, 3});
//   const auto y = gpu.array<float>(3);                    // not to be read before it is written
//   launch_halve(x.data(), y.data(), 3, nullptr);          // a launcher of trireme, compiled for the host
//   y.values(), gpu.counts().read_bytes
//
// CMakeLists.txt compiles kernels' sources for the host (trireme_played_kernels).
#pragma once

#include <map>
#include <stdexcept>
#include <vector>

#include "trireme/kernels/gpu_code.h"

namespace trireme::played {

// What a kernel did that a GPU must not be asked.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Of global memory, since the counts were last cleared. "Distinct" bytes are those at different addresses in
// one launch: what has to come from or go to memory where caches keep all else.
struct Counts {
  int64_t read_bytes = 0, written_bytes = 0;
  int64_t distinct_read_bytes = 0, distinct_written_bytes = 0;
  int64_t reads = 0, writes = 0;  // accesses of one thread
  int64_t launches = 0;
};

class Gpu;

template <typename T>
class Array {
 public:
  Array(Gpu& gpu, T* data, int64_t count) : gpu_(gpu), data_(data), count_(count) {}
  T* data() const { return data_; }
  int64_t count() const { return count_; }
  std::vector<T> values() const;

 private:
  Gpu& gpu_;
  T* data_;
  int64_t count_;
};

class Gpu {
 public:
  Gpu();
  ~Gpu();
  Gpu& operator=(Gpu&&) = delete;

  // Arrays live as long as the GPU and start at multiples of 256 bytes.
  template <typename T>
  Array<T> array(int64_t count) {
    return {*this, static_cast<T*>(allocate(count, sizeof(T))), count};
  }
  template <typename T>
  Array<T> array(const std::vector<T>& values) {
    const auto count = static_cast<int64_t>(values.size());
    return {*this, static_cast<T*>(copied(values.data(), count, sizeof(T))), count};
  }
  // The same without a type: addresses to hand to a launcher. `copied` are elements that count as written.
  void* allocate(int64_t count, int64_t element_bytes);
  void* copied(const void* host, int64_t count, int64_t element_bytes);
  // The elements of the array that begins at `address`. Refused if one was never written.
  void copy_out(const void* address, void* host) const;
  // One element.
  void set(void* address, const void* host, int64_t bytes);
  void get(const void* address, void* host, int64_t bytes);

  const Counts& counts() const { return counts_; }
  void clear_counts();

  // For the player.
  const void* read(const void* address, int64_t bytes);
  void* write(void* address, int64_t bytes);
  void begin_launch();

 private:
  struct Memory;  // of one array
  struct Span {
    Memory& memory;
    int64_t offset, first, count;  // bytes; elements
  };
  Span at(const void* address, int64_t bytes, const char* what);

  std::map<uintptr_t, Memory> arrays_;  // by first address
  char* addresses_;
  int64_t used_bytes_ = 0;
  Counts counts_;
};

// Refused where there is none.
Gpu& present();

template <typename T>
std::vector<T> Array<T>::values() const {
  std::vector<T> host(static_cast<size_t>(count_));
  gpu_.copy_out(data_, host.data());
  return host;
}

}  // namespace trireme::played
