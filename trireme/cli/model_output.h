// The folder into which init and export write a model. The model appears whole: its files are written to
// OUT.tmp-..., which takes OUT's name when all are there. Until then an older model in OUT stays as it was.
// If OUT cannot be renamed (it is a mount point, or its parent is not writable), the files are written to
// OUT/.trireme.tmp-... and take their names one by one. An older config.json is removed first and the new one
// comes last, so that nothing reads a mixture of two models.
#pragma once

#include <filesystem>

#include "trireme/cli/owned_folder.h"

namespace trireme {

class ModelOutput {
 public:
  // ConfigError that names --out if it is a file, or is not empty and `overwrite` is false. Changes nothing.
  static void check(const std::filesystem::path& out, bool overwrite);
  // Calls check() too.
  ModelOutput(const std::filesystem::path& out, bool overwrite);

  // The folder to write to.
  const std::filesystem::path& path() const { return written_.path(); }
  // Replaces the model in `out`; its other files (not of a model: notes, a README) stay. Throws DataError.
  void publish();

 private:
  void publish_file_by_file();
  [[noreturn]] void keep_older(const std::filesystem::path& name, int error);

  std::filesystem::path out_;
  bool inside_ = false;  // the new files lie inside `out_`
  OwnedFolder written_;
};

}  // namespace trireme
