// The folder that init and export write a model into. It appears whole: files are written to OUT.tmp-..., which takes OUT's name
// when all of them are there; until then an older model in OUT stays as it was. Where OUT cannot be renamed (a mount point, or its
// parent may not be written to) they are written to OUT/.trireme.tmp-... and take their names one by one: an older config.json
// goes first and the new one comes last, so that no mixture of two models is ever read.
#pragma once

#include <filesystem>

#include "trireme/cli/owned_folder.h"

namespace trireme {

class ModelOutput {
 public:
  // ConfigError that names --out: it is a file, or it holds something and `overwrite` is false. Changes nothing.
  static void check(const std::filesystem::path& out, bool overwrite);
  // Checks too.
  ModelOutput(const std::filesystem::path& out, bool overwrite);

  // Where to write.
  const std::filesystem::path& path() const { return written_.path(); }
  // Replaces the model in `out`; its other files (not of a model: notes, a README) stay. Throws DataError.
  void publish();

 private:
  void publish_file_by_file();

  std::filesystem::path out_;
  bool inside_ = false;  // of `out_` lies what is written
  OwnedFolder written_;
};

}  // namespace trireme
