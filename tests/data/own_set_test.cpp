// docs/data.md tells how to write a set without Trireme and in which order a run takes samples; its lines are
// run as they stand there.
#include <cstdlib>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/sample_order.h"

#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

// The page's lines that define a function.
std::string lines_with(const std::string& function) {
  const std::string page = testing::bytes_of(testing::source_folder() / "docs/data.md"),
                    fence = "```python\n";
  const size_t begin = page.rfind(fence, page.find("def " + function + "(")) + fence.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

TEST(OwnSet, the_pages_lines_write_what_trireme_reads) {
  const std::string script = lines_with("write_set") +
                             "import sys\n"
                             "write_set(sys.argv[1] + '/small', iter([[1, 2, 258], [], [7]]), 300)\n"
                             "write_set(sys.argv[1] + '/wide', [[70000, 3]], 70001)\n";
  const testing::TemporaryFolder folder;
  const auto file = folder.write("write.py", script);
  ASSERT_EQ(std::system(("python3 " + file.string() + " " + folder.path().string()).c_str()), 0);
  const auto tokens = [&](const char* name) {
    const IndexedDataset set(folder / name);
    std::vector<int64_t> all(static_cast<size_t>(set.tokens()));
    set.read(0, set.tokens(), all.data());
    return all;
  };
  EXPECT_EQ(tokens("small"), (std::vector<int64_t>{1, 2, 258, 7}));
  EXPECT_EQ(tokens("wide"), (std::vector<int64_t>{70000, 3}));
  EXPECT_EQ(IndexedDataset(folder / "small").documents(), 3);
}

TEST(OwnOrder, the_pages_lines_give_the_samples_of_a_run) {
  const testing::TemporaryFolder folder;
  const auto file = folder.write(
      "order.py", lines_with("sample_at") +
                      "for seed in 0, 42, 2**63 - 1:\n"
                      "    for count in 1, 2, 3, 5, 16, 1000, 2**40 + 3:\n"
                      "        for position in 0, 1, 2, 10, 999, 7 * count + count // 2:\n"
                      "            print(seed, count, position, sample_at(position, count, seed))\n");
  ASSERT_EQ(std::system(cat("python3 ", file.string(), " > ", (folder / "out").string()).c_str()), 0);
  std::ifstream out(folder / "out");
  uint64_t seed = 0;
  int lines = 0;
  for (int64_t count = 0, position = 0, sample = 0; out >> seed >> count >> position >> sample; ++lines)
    EXPECT_EQ(sample, SampleOrder(count, seed, position / count)[position % count])
        << seed << " " << count << " " << position;
  EXPECT_EQ(lines, 3 * 7 * 6);
}

}  // namespace
}  // namespace trireme
