// docs/deepspeed-config.md is made of the table of keys that the program reads by.
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/cli/config.h"
#include "trireme/cli/deepspeed_keys.h"
#include "trireme/cli/train.h"

#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"

namespace trireme::deepspeed_page_test {
namespace {

const char* const kHead =
    "# Keys of a DeepSpeed configuration\n\n"
    "`trireme train --deepspeed ds_config.json` (or `--deepspeed_config`) reads the file that DeepSpeed and "
    "the Trainer read. Each key is obeyed, is named at the start of the run as without meaning, or is "
    "refused; an unknown key is refused with the nearest known one. \"auto\", null and an absent key take "
    "the flag, or the option's default. A flag that contradicts the file is refused. `trireme config show "
    "ds_config.json` prints what a file becomes.\n\n"
    "train_batch_size is micro-batch x accumulation x (ranks / ranks that share a sample). Where a file "
    "contradicts that, the run refuses it with the numbers, and `trireme config fix ds_config.json --ranks "
    "32` (JSON, not YAML) writes `ds_config.fixed.json` with the numbers that are right (the batch, and a "
    "degree that does not divide the ranks), and nothing else changed.\n\n"
    "Trireme's own options stand in a file too: `--config run.yaml`, YAML or JSON with the names of "
    "[options](options.md); flags count more, also over what contradicts them (`--warmup_ratio` over "
    "`warmup_steps`). A list of names stands for a flag's words with commas. `--config "
    "OUTPUT_DIR/config.json` replays a run.\n";

std::string code(const Json& value) {
  return cat("`", value.dump(), "`");
}

std::string meaning(const DeepSpeedKey& key) {
  switch (key.use) {
    case DeepSpeedUse::option: {
      std::string text = cat("`--", key.option, "`");
      std::string values;
      for (const DeepSpeedKey::Named& named : key.values)
        if (named.deepspeed != named.ours)
          values += cat(values.empty() ? ": " : ", ", code(named.deepspeed), " is ", code(named.ours));
      return text + values + (key.answer.empty() ? "" : "; " + key.answer);
    }
    case DeepSpeedUse::together:
      return key.answer;
    case DeepSpeedUse::nothing:
      return "no meaning: " + key.answer;
    case DeepSpeedUse::refused:
      return cat("refused", key.harmless.is_null() ? "" : cat(" but for ", code(key.harmless)), ": ",
                 key.answer);
  }
  throw InternalError("a use without words");
}

std::string deepspeed_page() {
  std::string page = kHead, section, names;
  const auto& keys = deepspeed_keys();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].section != section)
      page += cat("\n## ", section = keys[i].section, "\n\n| key | takes | here |\n|---|---|---|\n");
    names += cat(names.empty() ? "" : ", ", "`", keys[i].path, "`");
    // Neighbours of one meaning are one row.
    if (i + 1 < keys.size() && keys[i + 1].section == section && keys[i + 1].type == keys[i].type &&
        meaning(keys[i + 1]) == meaning(keys[i]))
      continue;
    page += cat("| ", names, " | ", name_of(keys[i].type), " | ", meaning(keys[i]), " |\n");
    names.clear();
  }
  return page;
}

TEST(DeepSpeedPage, names_flags_that_exist) {
  TrainFlags train;
  ConfigFlags config;
  OptionParser parser("", "");
  train.declare(parser);
  config.declare(parser);
  const std::vector<std::string> names = parser.names();
  const std::set<std::string> known(names.begin(), names.end());
  const std::regex flag("--([a-z0-9_]+)");
  const std::string page = deepspeed_page();
  for (std::sregex_iterator match(page.begin(), page.end(), flag), end; match != end; ++match)
    EXPECT_TRUE(known.contains((*match)[1])) << (*match)[0];
}

// TRIREME_WRITE_PAGES=1 writes the page anew.
TEST(DeepSpeedPage, is_made_of_the_keys) {
  const auto page = testing::source_folder() / "docs/deepspeed-config.md";
  if (std::getenv("TRIREME_WRITE_PAGES") != nullptr) std::ofstream(page) << deepspeed_page();
  EXPECT_EQ(testing::bytes_of(page), deepspeed_page())
      << "write it anew: TRIREME_WRITE_PAGES=1 build/cpu/bin/cli_test --gtest_filter=DeepSpeedPage.*";
}

}  // namespace
}  // namespace trireme::deepspeed_page_test
