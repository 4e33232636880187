#include "trireme/data/text_source.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void jsonl(Bytes input) {
  const auto path = write_input("lines.jsonl", input);
  taken_or_refused("lines.jsonl", [&] {
    TextSource source({path}, "text");
    while (source.next()) {
    }
  });
}

}  // namespace trireme::fuzz
