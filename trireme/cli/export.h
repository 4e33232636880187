// `trireme export`: a checkpoint as a Hugging Face model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trireme/cli/option_parser.h"

namespace trireme {

struct ExportFlags {
  std::filesystem::path checkpoint, out;
  std::string dtype = "auto";
  bool overwrite = false;
  bool merge = false;
  std::string model;
  std::string into;

  void declare(OptionList& list);
};

int run_export(const std::vector<std::string>& arguments);

}  // namespace trireme
