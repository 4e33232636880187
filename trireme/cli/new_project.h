// `trireme new`: a folder for a run, with files to edit that train as they are. The files are those of
// examples/new, which the build puts into the program.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/cli/option_parser.h"

namespace trireme {

enum class ProjectVariant { native, transformers };
constexpr auto enum_names(ProjectVariant) {
  using enum ProjectVariant;
  return std::to_array<EnumName<ProjectVariant>>({{native, "native"}, {transformers, "transformers"}});
}

struct NewProjectFlags {
  ProjectVariant variant = ProjectVariant::native;

  void declare(OptionList& list);
};

struct ProjectFile {
  std::string_view folder;  // "shared", or the name of a variant
  std::string_view path;    // in the new folder
  std::string_view text;
};
const std::vector<ProjectFile>& project_files();  // made by the build (cli/CMakeLists.txt)

// Writes the variant's files into `folder`, which must not be there or be empty, else ConfigError. Gives
// their paths in it.
std::vector<std::string> write_project(const std::filesystem::path& folder, ProjectVariant variant);

int run_new(const std::vector<std::string>& arguments);

}  // namespace trireme
