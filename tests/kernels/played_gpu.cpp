#include "tests/kernels/played_gpu.h"

#include <sys/mman.h>

#include "trireme/base/error.h"
#include "trireme/kernels/vector_math.h"

#include "tests/kernels/played_threads.h"

namespace trireme::played {

namespace {

constexpr int64_t kAddresses_bytes = int64_t{1} << 36;  // nothing of them is ever touched
constexpr int64_t kAlignment_bytes = 256;
thread_local Gpu* present_gpu = nullptr;

struct GlobalElement {
  Use write, read;
  bool written = false;
  int64_t read_in = -1, written_in = -1;  // launch that counted it
};

}  // namespace

struct Gpu::Memory {
  int64_t element_bytes = 0;
  std::vector<char> bytes;
  std::vector<GlobalElement> elements;
};

Gpu::Gpu()
    : addresses_(static_cast<char*>(
          mmap(nullptr, kAddresses_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (addresses_ == MAP_FAILED || present_gpu != nullptr)
    throw std::logic_error("a played GPU: one at a time, and 64 GiB of addresses");
  present_gpu = this;
}
Gpu::~Gpu() {
  present_gpu = nullptr;
  munmap(addresses_, kAddresses_bytes);
}

void* Gpu::allocate(int64_t count, int64_t element_bytes) {
  char* const first = addresses_ + used_bytes_;
  const int64_t bytes = count * element_bytes;
  // Never two arrays without a gap.
  used_bytes_ += (bytes / kAlignment_bytes + 2) * kAlignment_bytes;
  Memory memory{element_bytes, {}, {}};
  memory.bytes.resize(static_cast<size_t>(bytes));
  memory.elements.resize(static_cast<size_t>(count));
  arrays_.emplace(reinterpret_cast<uintptr_t>(first), std::move(memory));
  return first;
}

void* Gpu::copied(const void* host, int64_t count, int64_t element_bytes) {
  void* const address = allocate(count, element_bytes);
  Memory& memory = arrays_.at(reinterpret_cast<uintptr_t>(address));
  if (count > 0) memcpy(memory.bytes.data(), host, memory.bytes.size());
  for (GlobalElement& element : memory.elements) element.written = true;
  return address;
}

void Gpu::copy_out(const void* address, void* host) const {
  const Memory& memory = arrays_.at(reinterpret_cast<uintptr_t>(address));
  for (size_t i = 0; i < memory.elements.size(); ++i)
    if (!memory.elements[i].written) throw Refused(cat("element ", i, " of the array was never written"));
  if (!memory.bytes.empty()) memcpy(host, memory.bytes.data(), memory.bytes.size());
}

void Gpu::clear_counts() {
  counts_ = {};
  for (auto& [address, memory] : arrays_)
    for (GlobalElement& element : memory.elements) element.read_in = element.written_in = -1;
}

// The elements of `bytes` at `address`, all of one array.
Gpu::Span Gpu::at(const void* address, int64_t bytes, const char* what) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin % static_cast<uintptr_t>(bytes) != 0)
    throw Refused(cat(present_thread(), " ", what, " ", bytes, " bytes at an address that is ",
                      begin % kAlignment_bytes, " mod ", kAlignment_bytes, ", expected a multiple of ",
                      bytes));
  const auto after = arrays_.upper_bound(begin);
  if (after == arrays_.begin()) throw Refused(cat(present_thread(), " ", what, " what is no array's"));
  Memory& memory = std::prev(after)->second;
  const int64_t offset = begin - std::prev(after)->first, size = memory.bytes.size();
  if (offset + bytes > size)
    throw Refused(
        cat(present_thread(), " ", what, " ", bytes, " bytes from byte ", offset, " of an array of ", size));
  if (offset % memory.element_bytes != 0 || bytes % memory.element_bytes != 0)
    throw Refused(cat(present_thread(), " ", what, " ", bytes, " bytes of an array of elements of ",
                      memory.element_bytes));
  return {memory, offset, offset / memory.element_bytes, bytes / memory.element_bytes};
}

void Gpu::set(void* address, const void* host, int64_t bytes) {
  const Span span = at(address, bytes, "writes");
  span.memory.elements[static_cast<size_t>(span.first)].written = true;
  memcpy(span.memory.bytes.data() + span.offset, host, static_cast<size_t>(bytes));
}

void Gpu::get(const void* address, void* host, int64_t bytes) {
  const Span span = at(address, bytes, "reads");
  if (!span.memory.elements[static_cast<size_t>(span.first)].written)
    throw Refused(cat("element ", span.first, " of the array was never written"));
  memcpy(host, span.memory.bytes.data() + span.offset, static_cast<size_t>(bytes));
}

const void* Gpu::read(const void* address, int64_t bytes) {
  const Span span = at(address, bytes, "reads");
  const Use now = present_use();
  for (int64_t i = span.first; i < span.first + span.count; ++i) {
    GlobalElement& element = span.memory.elements[static_cast<size_t>(i)];
    if (!element.written) throw Refused(cat(present_thread(), " reads element ", i, ", which nobody wrote"));
    if (!ordered(element.write, now))
      throw Refused(cat(present_thread(), " reads element ", i, " of global memory, which ",
                        name_of(element.write), " wrote, and no barrier lies between"));
    element.read = with_reader(element.read, now);
    if (element.read_in != counts_.launches) counts_.distinct_read_bytes += span.memory.element_bytes;
    element.read_in = counts_.launches;
  }
  counts_.read_bytes += bytes;
  ++counts_.reads;
  return span.memory.bytes.data() + span.offset;
}

void* Gpu::write(void* address, int64_t bytes) {
  const Span span = at(address, bytes, "writes");
  const Use now = present_use();
  for (int64_t i = span.first; i < span.first + span.count; ++i) {
    GlobalElement& element = span.memory.elements[static_cast<size_t>(i)];
    for (const Use& before : {element.write, element.read})
      if (!ordered(before, now))
        throw Refused(cat(present_thread(), " writes element ", i, " of global memory, which ",
                          name_of(before), " used, and no barrier lies between"));
    element.write = now;
    element.written = true;
    if (element.written_in != counts_.launches) counts_.distinct_written_bytes += span.memory.element_bytes;
    element.written_in = counts_.launches;
  }
  counts_.written_bytes += bytes;
  ++counts_.writes;
  return span.memory.bytes.data() + span.offset;
}

void Gpu::begin_launch() {
  ++counts_.launches;
}

Gpu& present() {
  if (present_gpu == nullptr) throw Refused("a launch without a played GPU");
  return *present_gpu;
}

const void* to_read(const void* address, int64_t bytes) {
  return present().read(address, bytes);
}
void* to_write(void* address, int64_t bytes) {
  return present().write(address, bytes);
}

}  // namespace trireme::played

namespace trireme {

float widened(Bf16 value) {
  return bf16_to_float(value.bits);
}
float widened(Fp16 value) {
  return fp16_to_float(value.bits);
}
template <>
Bf16 narrowed<Bf16>(float value) {
  return {float_to_bf16(value)};
}
template <>
Fp16 narrowed<Fp16>(float value) {
  return {float_to_fp16(value)};
}

}  // namespace trireme
