#include "trireme/tokenizer/tokenizer.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void tokenizer(Bytes input) {
  const auto path = write_input("tokenizer.json", input);
  taken_or_refused("tokenizer.json", [&] {
    const Tokenizer tokenizer = Tokenizer::load(path);
    tokenizer.encode(
        "It's 12345 w\xc3\xb6rds,  na\xc3\xafve\xcc\x81 <|endoftext|>\xff\n\n"
        "a longer text, \xe6\x96\x87\xe5\xad\x97 with\x01 spaces that is cut where no merge crosses");
    tokenizer.end_of_text_id();
  });
}

}  // namespace trireme::fuzz
