#include "trireme/measure/memory_report.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The words of the line that begins with `name`.
std::vector<std::string> words_of(const std::string& report, const std::string& name) {
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + " ", 0) != 0) continue;
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
  }
  return {};
}

TEST(MemoryReport, has_a_line_for_every_category_and_one_for_all) {
  MemoryAccount account;
  account.add(MemoryCategory::parameters, int64_t{3} << 30);
  account.add(MemoryCategory::tiles, int64_t{5} << 20);
  account.add(MemoryCategory::tiles, -(int64_t{5} << 20));
  account.add(MemoryCategory::gradients, int64_t{1} << 20);
  MemoryForecast forecast;
  forecast.peak[MemoryCategory::tiles] = int64_t{6} << 20;
  forecast.peak_total_bytes = int64_t{4} << 30;
  const std::string report = memory_report(account.state(), forecast);
  EXPECT_THAT(report, HasSubstr("formula"));
  for (const MemoryCategory category : kAllMemoryCategories)
    EXPECT_FALSE(words_of(report, name_of(category)).empty()) << name_of(category);
  EXPECT_THAT(words_of(report, "tiles"),
              ElementsAre("tiles", "0", "B", "5.0", "MiB", "5.0", "MiB", "6.0", "MiB"));
  EXPECT_THAT(words_of(report, "all"),
              ElementsAre("all", "3.0", "GiB", "3.0", "GiB", "3.0", "GiB", "4.0", "GiB"));
}

TEST(MemoryReport, tells_of_the_host_beside_a_gpu_apart_from_the_gpu) {
  MemoryAccount account(MemorySpace::host);
  account.add(MemoryCategory::optimizer, int64_t{1} << 20);
  EXPECT_THAT(memory_report(account.state(), {}), Not(HasSubstr("host_")));
  account.add(MemoryCategory::optimizer, int64_t{3} << 30, MemorySpace::host);
  MemoryForecast forecast;
  forecast.host[MemoryCategory::optimizer] = int64_t{2} << 30;
  const std::string report = memory_report(account.state(), forecast);
  EXPECT_THAT(words_of(report, "optimizer"),
              ElementsAre("optimizer", "1.0", "MiB", "1.0", "MiB", "1.0", "MiB", "0", "B"));
  EXPECT_THAT(words_of(report, "host_optimizer"),
              ElementsAre("host_optimizer", "3.0", "GiB", "3.0", "GiB", "3.0", "GiB", "2.0", "GiB"));
  EXPECT_THAT(words_of(report, "host_all"),
              ElementsAre("host_all", "3.0", "GiB", "3.0", "GiB", "3.0", "GiB", "2.0", "GiB"));
}

}  // namespace
}  // namespace trireme
