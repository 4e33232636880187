// docs/options.md is made of the list of options that the program has.
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/option_value.h"
#include "trireme/cli/train.h"

#include "tests/support/file_bytes.h"
#include "tests/support/source_folder.h"

namespace trireme::options_page_test {
namespace {

std::string in_cell(const std::string& text) {
  std::string escaped;
  for (const char letter : text) escaped += letter == '|' ? std::string("\\|") : std::string(1, letter);
  return escaped;
}

std::string code(const std::string& text) {
  return text.empty() ? "" : cat("`", in_cell(text), "`");
}

std::string takes(const Option& option) {
  if (option.type == OptionType::boolean) return "true or false";
  if (option.range) return option.range->text();
  return option.choices.empty() ? value_text(option) : code(value_text(option));
}

const char* on_resume(const Option& option) {
  if (!option.in_config) return "";
  switch (option.resume_rule) {
    case ResumeRule::told:
      return "told";
    case ResumeRule::free:
      return "";
    case ResumeRule::same_order:
      return "refused";
    case ResumeRule::by_content:
      return "compared by content";
  }
  throw InternalError("a resume rule without words");
}

std::string options_page() {
  TrainFlags flags;
  OptionList list;
  flags.declare(list);
  std::string page =
      "# Options of trireme train\n\n"
      "As `--flag value` or `--flag=value`, with underscores or hyphens; a true/false flag given alone "
      "means true. Whole numbers take k, m and g (1,024, 1,024^2, 1,024^3) and b (10^9). `eval loss`, "
      "`verify` and `bench step` take most of the options of memory, sequence and process (their `--help` "
      "lists them). The run's folder keeps them in its config.json, but --threads, --ddp_timeout and "
      "--ddp_backend, which are of the machine; --sp stands there as ulysses and ring, --device as the "
      "one that ran. The last column says what happens where a resumed run "
      "(`--resume_from_checkpoint`) gets another value. *told*: a line names the change. *refused*: the "
      "run ends, unless `--resume_with_new_data`. *compared by content*: the same content under another "
      "name goes on, other content is refused likewise. Empty: it may change. Flags of other programs: "
      "[flags from elsewhere](from-huggingface.md).\n";
  for (const auto& [group, title] : enum_names(OptionGroup{})) {
    std::string rows;
    for (const Option& option : list.options())
      if (option.is_flag() && option.group == group)
        rows +=
            cat("| `--", option.name, "` | ", option.must_be_given ? "required" : code(default_text(option)),
                " | ", takes(option), " | ", in_cell(option.help), " | ", on_resume(option), " |\n");
    if (!rows.empty())
      page +=
          cat("\n## ", title, "\n\n| flag | default | takes | | on resume |\n|---|---|---|---|---|\n", rows);
  }
  return page;
}

// TRIREME_WRITE_PAGES=1 writes the page anew.
TEST(OptionsPage, is_made_of_the_options) {
  const auto page = testing::source_folder() / "docs/options.md";
  if (std::getenv("TRIREME_WRITE_PAGES") != nullptr) std::ofstream(page) << options_page();
  EXPECT_EQ(testing::bytes_of(page), options_page())
      << "write it anew: TRIREME_WRITE_PAGES=1 build/cpu/bin/cli_test --gtest_filter=OptionsPage.*";
}

}  // namespace
}  // namespace trireme::options_page_test
