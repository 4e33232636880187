// Documents from files: the input of `tokenize` and `--train_file`.
//
//   a folder        every file below it, sorted by path. Hidden files (.git), files that are not text
//                   (by their first bytes) and folders of runs (base/run_folder.h), whose files change, are
//                   left out and counted. Links are followed.
//   a .jsonl file   one document a line: the string under `field`, or else a "prompt" and its "completion",
//                   one behind the other; wrong UTF-8 is replaced before parsing. Likewise .ndjson, and .json
//                   that is an input itself; a JSON list, .csv and .tsv are refused as inputs
//   another file    one document: its bytes unchanged (line ends kept), without a leading byte order mark
//
// A file that several names or inputs lead to is read once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "trireme/data/bad_records.h"
#include "trireme/data/line_reader.h"

namespace trireme {

struct Document {
  std::string text;          // may hold wrong UTF-8
  int64_t prompt_bytes = 0;  // the text's first, which are not to be predicted (prompts.h)
  std::string origin;        // "file" or "file:line", for messages
  // The file's or line's bytes are wrong UTF-8. For a line, `text` already holds U+FFFD instead.
  bool wrong_utf8 = false;
};

struct SourceCounts {
  int64_t files = 0;  // read
  // Left out: not text, not a regular file, or read under another name; a run's folder counts as one.
  int64_t left_out_files = 0;
  std::vector<std::string> left_out;  // the first few of those, each with the reason
  int64_t hidden_entries = 0;         // files and folders left out
  int64_t empty_documents = 0;        // left out
  int64_t text_bytes = 0;             // of all documents
  BadRecords bad_records;             // left out (OnBadRecord::skip)

  // For people: the first few files that were left out, then "and N more".
  std::vector<std::string> left_out_lines() const;
};

// A folder, or a file of which each line is a document, by its name. Of what does not exist, true.
bool may_hold_json_lines(const std::filesystem::path& input);

class TextSource {
 public:
  // Throws ConfigError for an input that does not exist or is a run's folder; DataError for a file that is not
  // text or cannot be read, and for a folder of a data set, whose text only describes its tables. `field_flag` is
  // the option by which the user names the field.
  TextSource(const std::vector<std::filesystem::path>& inputs, std::string field,
             std::string field_flag = "--text_field", OnBadRecord on_bad_record = OnBadRecord::stop);

  // The next document that is not empty. Throws DataError with file and line for wrong JSON, a missing field,
  // a field that is no string, or a text beside a prompt and its completion, unless such lines are skipped; it
  // reads on first, so that the first such line of every file is named (20 at most). Throws DataError with the
  // file when it cannot be read.
  std::optional<Document> next();
  const SourceCounts& counts() const { return counts_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }  // in the order of reading

 private:
  void add_folder(const std::filesystem::path& folder);
  bool has_lines(const std::filesystem::path& file) const;
  bool meet(const std::filesystem::path& file);  // false: met before, and left out
  void leave_out(const std::filesystem::path& file, const std::string& why);
  std::optional<Document> next_line();
  std::optional<Document> document_of(std::string& line) const;  // nullopt: an empty line
  [[noreturn]] void refuse(const std::string& first);
  std::optional<Document> whole_file(const std::filesystem::path& file);

  std::string field_;
  std::string field_flag_;
  OnBadRecord on_bad_record_;
  std::set<std::pair<dev_t, ino_t>> found_;  // files of all inputs
  std::vector<std::filesystem::path> files_;
  std::set<std::pair<dev_t, ino_t>>
      json_by_name_;  // inputs that are .json files; others in a folder are text
  size_t next_file_ = 0;
  std::optional<LineReader> lines_;  // of the .jsonl file being read
  SourceCounts counts_;
};

}  // namespace trireme
