// docs/data.md tells how to write a set without Trireme; its lines are run as they stand there.
#include <cstdlib>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/data/indexed_dataset.h"

#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

TEST(OwnSet, the_pages_lines_write_what_trireme_reads) {
  const std::string page = testing::bytes_of(testing::source_folder() / "docs/data.md"),
                    fence = "```python\n";
  const size_t begin = page.find(fence);
  ASSERT_NE(begin, std::string::npos);
  std::string script =
      page.substr(begin + fence.size(), page.find("```", begin + fence.size()) - begin - fence.size());
  script +=
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

}  // namespace
}  // namespace trireme
