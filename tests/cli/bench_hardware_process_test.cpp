// trireme bench hardware as a user runs it: a profile that the planner reads, alone and of one rank of two,
// and the prediction of a step by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/json.h"
#include "trireme/plan/hardware_profile.h"

#include "tests/cli/program.h"
#include "tests/support/temporary_folder.h"

namespace trireme {
namespace {

using ::testing::HasSubstr;
using testing::output_of;

const std::vector<std::string> kBenchHardware{"bench",     "hardware", "--device",  "cpu",
                                              "--seconds", "0.2",      "--threads", "1"};

TEST(BenchHardwareProgram, two_ranks_measure_a_profile_with_every_rate_and_link) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "machine.json";
  std::vector<std::string> words{"launch", "--nproc_per_node", "2", "--"};
  words.insert(words.end(), kBenchHardware.begin(), kBenchHardware.end());
  words.insert(words.end(), {"--out", file.string(), "--offload_dir", folder.path().string()});
  output_of(words, folder / "log");
  const HardwareProfile profile = hardware_profile_from_json(read_json(file), file.string());
  EXPECT_FALSE(profile.is_gpu);
  EXPECT_EQ(profile.threads, 1);
  EXPECT_EQ(profile.devices_per_machine, 2);
  EXPECT_LE(2 * profile.memory_bytes, profile.host_memory_bytes);
  for (const int64_t bytes : {2, 4})
    for (const auto& [kind, name] : enum_names(WorkKind{})) {
      const RateTable& table = profile.rates(bytes).at(kind);
      ASSERT_FALSE(table.points.empty()) << name;
      for (const RatePoint& point : table.points) EXPECT_GT(point.per_second, 0) << name;
    }
  for (const LinkSpeed& link : {profile.within_machine, profile.disk_read, profile.disk_write})
    EXPECT_GT(link.bytes_per_second, 0);
  EXPECT_EQ(profile.across_machines.bytes_per_second, 0);
  EXPECT_GT(profile.outside_tensors_bytes, 0);
}

TEST(BenchHardwareProgram, its_file_predicts_a_step_of_as_many_threads) {
  const testing::TemporaryFolder folder;
  const auto file = folder.path() / "machine.json", model = folder.path() / "model";
  std::vector<std::string> words = kBenchHardware;
  words.insert(words.end(), {"--out", file.string()});
  EXPECT_THAT(output_of(words, folder / "log"), HasSubstr("attention_backward"));
  output_of({"init", "--preset", "tiny", "--out", model.string()}, folder / "init");
  const auto step = [&](const char* steps, const char* threads) -> std::vector<std::string> {
    return {"bench",  "step",      "--model", model.string(), "--seq",       "64",       "--steps",
            steps,    "--warmup",  "1",       "--predict",    file.string(), "--device", "cpu",
            "--json", "--threads", threads};
  };
  EXPECT_THAT(output_of(step("2", "1"), folder / "step"), HasSubstr("\"predicted\":{"));
  // Before its steps.
  EXPECT_THAT(output_of(step("100000000", "2"), folder / "refused", 78),
              HasSubstr("measured with 1 threads"));
}

}  // namespace
}  // namespace trireme
