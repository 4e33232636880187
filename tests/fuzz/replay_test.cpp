// The seeds and every crash that fuzzing found, through the same functions that ./dev fuzz calls. A file that
// crashes ends the test program with its name in front.
#include <algorithm>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"

namespace fs = std::filesystem;

namespace trireme::fuzz {
namespace {

using ::testing::HasSubstr;

const std::map<std::string, void (*)(Bytes)>& targets() {
  static const std::map<std::string, void (*)(Bytes)> kTargets{{"safetensors", safetensors},
                                                               {"index", index},
                                                               {"config", config},
                                                               {"tokenizer", tokenizer},
                                                               {"dataset", dataset},
                                                               {"manifest", manifest},
                                                               {"state", state},
                                                               {"jsonl", jsonl},
                                                               {"reference", reference},
                                                               {"command_line", command_line},
                                                               {"memory_error", memory_error}};
  return kTargets;
}

std::vector<fs::path> files_of(const std::string& kind, const std::string& target) {
  std::vector<fs::path> files;
  std::error_code none;  // no crash was found
  for (const auto& entry :
       fs::directory_iterator(testing::source_folder() / "tests/fuzz" / kind / target, none))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class FuzzReplay : public ::testing::TestWithParam<std::string> {};

TEST_P(FuzzReplay, every_seed_and_every_crash_found_is_taken_or_refused_by_name) {
  const auto target = targets().at(GetParam());
  EXPECT_FALSE(files_of("corpus", GetParam()).empty()) << "a target without a seed";
  for (const char* kind : {"corpus", "regressions"})
    for (const fs::path& file : files_of(kind, GetParam())) {
      SCOPED_TRACE(file.string());
      const std::string bytes = testing::bytes_of(file);
      target({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
      // As a copy that was stopped leaves it.
      target({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size() / 2});
    }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, target] : targets()) names.push_back(name);
                           return names;
                         }()),
                         [](const auto& target) { return target.param; });

// By a matcher: the tokenizers link Oniguruma, whose regcomp() is not the C library's.
TEST(FuzzTarget, a_refusal_without_the_files_name_or_of_another_kind_is_a_crash) {
  const auto with = [](const std::function<void()>& body) { taken_or_refused("x.json", body); };
  with([] { throw DataError("x.json: no"); });
  with([] { throw ConfigError("x.json: no"); });
  EXPECT_DEATH(with([] { throw DataError("no"); }), HasSubstr("does not name the file"));
  EXPECT_DEATH(with([] { throw InternalError("x.json: no"); }),
               HasSubstr("neither DataError nor ConfigError"));
  EXPECT_DEATH(with([] { throw std::out_of_range("x.json"); }), HasSubstr("another exception"));
  EXPECT_DEATH(with([] { throw DataError("x.json" + std::string(5000, 'x')); }), HasSubstr("too long"));
}

}  // namespace
}  // namespace trireme::fuzz
