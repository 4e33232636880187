#include "trireme/plan/memory_error.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void memory_error(Bytes input) {
  taken_or_refused("log.txt", [&] { read_memory_error(text_of(input), "log.txt"); });
}

}  // namespace trireme::fuzz
