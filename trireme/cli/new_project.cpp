#include "trireme/cli/new_project.h"

#include <iostream>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/make_folder.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

constexpr const char* kUsageOfNew = "usage: trireme new DIR [--variant native|transformers]\n";

}  // namespace

void NewProjectFlags::declare(OptionList& list) {
  list.choice("variant", variant,
              "native: trireme trains; transformers: beside it a loop and a collator in Python");
}

std::vector<std::string> write_project(const fs::path& folder, ProjectVariant variant) {
  if (is_there(folder) && (!fs::is_directory(folder) || !entries_of(folder).empty()))
    throw ConfigError(cat(folder.string(),
                          " is there and is no empty folder, and nothing in it is replaced; name another"));
  std::vector<std::string> written;
  for (const ProjectFile& file : project_files()) {
    if (file.folder != "shared" && file.folder != name_of(variant)) continue;
    const fs::path path = folder / file.path;
    make_asked_folder(path.parent_path());
    replace_file(path, std::string(file.text));
    if (file.path.ends_with(".sh"))
      fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add);
    written.emplace_back(file.path);
  }
  return written;
}

int run_new(const std::vector<std::string>& arguments) {
  NewProjectFlags flags;
  OptionParser parser("new DIR", "Makes a folder for a run: files to edit, which train as they are.");
  flags.declare(parser);
  const bool has_folder = !arguments.empty() && !arguments[0].starts_with("-");
  if (!parser.parse({arguments.begin() + (has_folder ? 1 : 0), arguments.end()})) return 0;
  if (!has_folder) throw ConfigError(cat("trireme new needs a folder first; ", kUsageOfNew));
  const fs::path folder = arguments[0];
  for (const std::string& path : write_project(folder, flags.variant))
    std::cout << (folder / path).string() << "\n";
  std::cout << "Begin with " << (folder / "README.md").string() << std::endl;
  return 0;
}

}  // namespace trireme
