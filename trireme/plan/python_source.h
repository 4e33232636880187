// Python source read for its imports, classes, constants and calls, without Python: by its tokens and brackets. What a
// program computes is not followed.
//
//   text -> tokens (python_tokens.h) -> imports, classes, constants of literals, calls with their arguments
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.h"

namespace trireme {

// keyword=value of a call, or NAME.keyword = value of a statement.
struct PythonArgument {
  std::string keyword;        // empty: by position, or of ** and *
  size_t begin = 0, end = 0;  // with the keyword
  size_t value_begin = 0;
  std::string written;        // the value
  std::optional<Json> value;  // of a literal, or of a name that is given one once
};

struct PythonCall {
  std::string callee;  // "trl.SFTTrainer"; with a dot before it where it is called on something computed
  size_t begin = 0;    // of the callee
  size_t open = 0, close = 0;  // the brackets
  std::vector<PythonArgument> arguments;
  std::vector<std::string> names;     // of NAME = callee(...), as they are written: "args", "self.args"
  std::vector<PythonArgument> later;  // NAME.keyword = value, by statements after it

  // The last of the keyword's values; nullptr: none.
  const PythonArgument* find(const std::string& keyword) const;
  // The same of each keyword once.
  std::vector<const PythonArgument*> keywords() const;
};

struct PythonImport {
  std::string name;  // as the module knows it: "trl.SFTTrainer", or "trl" of `import trl`
  size_t statement_begin = 0, statement_end = 0;  // without the end of line
};

struct PythonSource {
  std::string text;
  std::map<std::string, PythonImport> imports;              // by the name in this file
  std::map<std::string, std::vector<std::string>> classes;  // -> what they derive from, as it is written
  std::vector<PythonCall> calls;

  // A name of this file as its module knows it: "SFTTrainer" -> "trl.SFTTrainer", with the outermost package
  // and the last name alone; through the classes of this file to what they derive from. Empty: not imported.
  std::string resolved(const std::string& written) const;
  int line_of(size_t at) const;  // from 1
};

// Throws DataError that names the line: a string or a bracket without its end.
PythonSource read_python_source(const std::string& text, const std::string& file);

}  // namespace trireme
