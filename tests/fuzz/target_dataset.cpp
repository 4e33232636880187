#include <algorithm>
#include <memory>
#include <vector>

#include "trireme/data/indexed_dataset.h"
#include "trireme/data/packing.h"

#include "tests/fuzz/fuzz_target.h"

namespace trireme::fuzz {

void dataset(Bytes input) {
  if (input.size() < 2) return;
  std::vector<uint8_t> bin(input[0] + 256U * input[1]);
  for (size_t i = 0; i < bin.size(); ++i) bin[i] = static_cast<uint8_t>(i * 7);
  write_input("set.bin", bin);
  const auto idx = write_input("set.idx", input.subspan(2));
  taken_or_refused("set.", [&] {
    const auto opened = std::make_shared<const IndexedDataset>(idx);
    const IndexedDataset& set = *opened;
    set.document_begins(0, set.documents() + 1);
    set.longest_document();
    const int64_t tokens = std::min<int64_t>(set.tokens(), 1000);
    set.document_of(set.tokens() - 1);
    std::vector<int64_t> out(static_cast<size_t>(tokens));
    set.read(set.tokens() - tokens, tokens, out.data(), 100);
    for (const Packing packing : {Packing::documents, Packing::best_fit}) {
      constexpr int64_t kRowTokens = 5;
      std::vector<int64_t> row_tokens(kRowTokens), targets(kRowTokens);
      const PackedRows rows(opened, {0, set.tokens()}, {packing}, kRowTokens, true);
      for (int64_t row = 0; row < std::min<int64_t>(rows.count(), 50); ++row)
        read_row(set, rows.row(row), {{0, kRowTokens}}, 256, 0, row_tokens.data(), targets.data());
    }
  });
}

}  // namespace trireme::fuzz
