#include "trireme/data/text_source.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/json.h"
#include "trireme/base/lower_case.h"
#include "trireme/base/run_folder.h"
#include "trireme/base/sizes.h"
#include "trireme/data/set_fingerprint.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

namespace fs = std::filesystem;

using namespace std::string_view_literals;

struct Kind {
  std::string_view first_bytes;
  const char* what;
};
constexpr const char* kArrow =
    "is an Arrow table: write it as .jsonl, by datasets.load_dataset(\"arrow\", data_files=\"FILE\", "
    "split=\"train\").to_json(\"FILE.jsonl\") (docs/data.md)";
constexpr std::array<Kind, 13> kKinds = {{
    {"\x1f\x8b"sv, "is compressed by gzip: unpack it"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd: unpack it"},
    {"\xfd\x37zXZ\0"sv, "is compressed by xz: unpack it"},
    {"BZh91AY&SY"sv, "is compressed by bzip2: unpack it"},
    {"\x04\x22\x4d\x18"sv, "is compressed by lz4: unpack it"},
    {"7z\xbc\xaf\x27\x1c"sv, "is a 7z archive: unpack it"},
    {"PK\3\4"sv, "is a zip archive or an office document: unpack it, or save it as text"},
    {"%PDF-"sv, "is a PDF: extract its text first, as with pdftotext"},
    {"PAR1\x15"sv,  // as its first header begins; a text may begin with PAR1
     "is a Parquet table: write it as .jsonl, by datasets.load_dataset(\"parquet\", "
     "data_files=\"FILE\", split=\"train\").to_json(\"FILE.jsonl\") (docs/data.md)"},
    {"ARROW1\0\0"sv, kArrow},
    {"\xff\xff\xff\xff"sv, kArrow},  // a stream, as save_to_disk of datasets writes it
    {"\xff\xfe"sv, "is UTF-16: convert it to UTF-8, as with iconv"},
    {"\xfe\xff"sv, "is UTF-16: convert it to UTF-8, as with iconv"},
}};

// In lower case: some write .JSONL.
std::string ending(const fs::path& file) {
  return lower_case(file.extension().string());
}

// nullopt: text, by the file's first bytes. Else the kind and what to do, to print after the file's name.
// Throws DataError when the file cannot be read.
std::optional<std::string> why_not_text(const fs::path& file) {
  constexpr int64_t kHeadBytes = 8192;
  const InputFile in(file, "text");
  std::string head(kHeadBytes, ' ');
  head.resize(static_cast<size_t>(in.read_some(0, head.data(), kHeadBytes)));
  for (const Kind& kind : kKinds)
    if (head.starts_with(kind.first_bytes)) return kind.what;
  if (head.find('\0') != std::string::npos)
    return cat("is binary (a zero byte in its first 8 KiB); expected text",
               ending(file) == ".bin" || ending(file) == ".idx"
                   ? ", or a tokenized set, which has both PREFIX.bin and PREFIX.idx"
                   : "");
  return std::nullopt;
}

bool is_lines(const fs::path& file) {
  return ending(file) == ".jsonl" || ending(file) == ".ndjson";
}

bool is_json(const fs::path& file) {
  return ending(file) == ".json";
}

std::optional<std::pair<dev_t, ino_t>> file_identity(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  return std::pair{status.st_dev, status.st_ino};
}

constexpr const char* kListAdvice = "jq -c '.[]' FILE > FILE.jsonl";

bool is_table(const fs::path& file) {
  return ending(file) == ".parquet" || ending(file) == ".arrow";
}

// Beside the tables of a data set: its card, and what the datasets library writes.
bool describes_data_set(const fs::path& file) {
  static const std::set<std::string> names{"readme",        "license",      "dataset_info",
                                           "dataset_infos", "dataset_dict", "state"};
  return names.contains(lower_case(file.stem().string()));
}

// Of each table, why it is no text.
void refuse_data_set(const fs::path& folder, const std::map<fs::path, std::string>& tables,
                     std::span<const fs::path> texts) {
  if (tables.empty() || !std::ranges::all_of(texts, describes_data_set)) return;
  const auto& [table, why] = *tables.begin();
  throw DataError(cat(quotation(folder.string()), ": holds the tables of a data set (", tables.size(),
                      "), which are not text, and beside them only what describes it",
                      texts.empty() ? "" : cat(" (", quotation(texts.front().filename().string()), ")"), ". ",
                      quotation(table.string()), " ", why));
}

// Tables that would be read as one text, braces and quotes in it.
void refuse_table(const fs::path& file) {
  const std::string kLines = ", expected one JSON object a line: ";
  if (ending(file) == ".csv" || ending(file) == ".tsv")
    throw DataError(
        cat(file.string(), ": is a table", kLines,
            "write it as .jsonl, as with to_json of datasets; if it is meant as text, name it .txt"));
  if (!is_json(file)) return;
  constexpr int64_t kHeadBytes = 64;
  std::string head(kHeadBytes, ' ');
  head.resize(static_cast<size_t>(InputFile(file, "text").read_some(0, head.data(), kHeadBytes)));
  const size_t first = head.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first != std::string::npos && head[first] == '[')
    throw DataError(cat(file.string(), ": is a JSON list", kLines, kListAdvice));
}

// Of a folder whose files change while runs go on.
std::string what_a_run_folder_is() {
  return cat("is a run's folder, with ", kRunLockFile, " and ", kCheckpointsFolder);
}

// Removes UTF-8's byte order mark, which is not part of the text.
void remove_byte_order_mark(std::string& text) {
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
}

// The fields of TRL's prompt-completion format.
constexpr const char* kPrompt = "prompt";
constexpr const char* kCompletion = "completion";

constexpr const char* kChatAdvice =
    "a chat becomes a tokenized set by its model's chat template: python -m trireme.chats (docs/data.md)";
constexpr const char* kPreferenceAdvice =
    "a pair of \"chosen\" and \"rejected\" is for preference training, which trireme train has not: "
    "DPOTrainer over ranks does it (docs/huggingface.md)";

constexpr const char* kInstructionAdvice =
    "\"instruction\" and \"output\" become a \"prompt\" and its \"completion\": "
    "jq -c '{prompt: (.instruction + \"\\n\" + .input + \"\\n\"), completion: .output}' "
    "FILE.jsonl > NEW.jsonl (docs/data.md)";

constexpr const char* kInputIds = "input_ids";
constexpr const char* kTokensAdvice =
    "tokens: write them by trireme.write_set, and name the set (docs/data.md)";
bool is_tokens(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_number_integer();
}

// Moved out of `json`.
std::string string_of(Json& json, const std::string& field, const std::string& origin) {
  Json& value = json[field];
  if (is_tokens(value)) throw DataError(cat(origin, ": \"", quotation(field), "\" is ", kTokensAdvice));
  if (value.is_array() && (field == kPrompt || field == kCompletion))
    throw DataError(cat(origin, ": \"", field, "\" is a list of messages; ", kChatAdvice));
  if (!value.is_string())
    throw DataError(
        cat(origin, ": \"", quotation(field), "\" is ", value.type_name(), "; expected a string"));
  return std::move(value.get_ref<std::string&>());
}

}  // namespace

bool may_hold_json_lines(const fs::path& input) {
  std::error_code error;
  return is_lines(input) || is_json(input) || !fs::is_regular_file(input, error);
}

std::vector<std::string> SourceCounts::left_out_lines() const {
  std::vector<std::string> lines = left_out;
  if (const auto more = left_out_files - static_cast<int64_t>(left_out.size()); more > 0)
    lines.push_back(cat("and ", format_count(more), " more"));
  return lines;
}

TextSource::TextSource(const std::vector<fs::path>& inputs, std::string field, std::string field_flag,
                       OnBadRecord on_bad_record)
    : field_(std::move(field)), field_flag_(std::move(field_flag)), on_bad_record_(on_bad_record) {
  for (const fs::path& input : inputs)
    if (const auto file = file_identity(input); file && is_json(input)) json_by_name_.insert(*file);
  for (const fs::path& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (status.type() == fs::file_type::not_found || status.type() == fs::file_type::none)
      throw ConfigError(cat("the input ", quotation(input.string()),
                            error && status.type() != fs::file_type::not_found
                                ? cat(" cannot be read: ", error.message())
                                : " does not exist"));
    if (fs::is_directory(status)) {
      if (is_run_folder(input))
        throw ConfigError(cat("the input ", quotation(input.string()), " ", what_a_run_folder_is(),
                              "; expected text: name the text in it, or move what the run wrote elsewhere"));
      add_folder(input);
    } else if (fs::is_regular_file(status)) {
      if (const auto why = why_not_text(input)) throw DataError(cat(input.string(), ": ", *why));
      refuse_table(input);
      if (meet(input)) files_.push_back(input);
    } else {
      throw ConfigError(cat("the input ", input.string(), " is neither a file nor a folder"));
    }
  }
}

void TextSource::leave_out(const fs::path& file, const std::string& why) {
  constexpr size_t kNamed = 5;
  ++counts_.left_out_files;
  if (counts_.left_out.size() < kNamed) counts_.left_out.push_back(cat(quotation(file.string()), " ", why));
}

bool TextSource::meet(const fs::path& file) {
  const auto identity = file_identity(file);
  if (!identity || found_.insert(*identity).second) return true;
  leave_out(file, "leads to a file that is read already");
  return false;
}

void TextSource::add_folder(const fs::path& root) {
  std::vector<fs::path> found, folders{root};
  std::set<fs::path> visited;  // real paths, so that links cannot form a loop
  while (!folders.empty()) {
    const fs::path folder = folders.back();
    folders.pop_back();
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (!error && !visited.insert(real).second) continue;
    // Sorted, so that the link followed of two links to one folder does not depend on the disk.
    std::vector<fs::path> inside = entries_of(folder);
    std::ranges::reverse(inside);
    for (const fs::path& path : inside) {
      const fs::file_status status = fs::status(path, error);
      if (path.filename().string().starts_with('.'))
        ++counts_.hidden_entries;
      else if (fs::is_directory(status) && is_run_folder(path))
        leave_out(path, what_a_run_folder_is());
      else if (fs::is_directory(status))
        folders.push_back(path);
      else if (fs::is_regular_file(status))
        found.push_back(path);
      else
        leave_out(path, status.type() == fs::file_type::not_found ? "is a link that leads nowhere"
                        : error                                   ? "cannot be read: " + error.message()
                                                                  : "is no regular file");
    }
  }
  std::sort(found.begin(), found.end());
  const size_t first = files_.size();
  std::map<fs::path, std::string> tables;
  for (const fs::path& file : found) {
    if (!meet(file)) continue;
    if (const auto set = set_with_file(file)) {
      leave_out(file, "belongs to a tokenized set, which is given by its own name: " + set->string());
    } else if (const auto why = why_not_text(file)) {
      leave_out(file, *why);
      if (is_table(file)) tables.emplace(file, *why);
    } else {
      files_.push_back(file);
    }
  }
  refuse_data_set(root, tables, std::span(files_).subspan(first));
}

bool TextSource::has_lines(const fs::path& file) const {
  if (is_lines(file)) return true;
  const auto identity = file_identity(file);
  return identity && json_by_name_.contains(*identity);
}

std::optional<Document> TextSource::next() {
  while (true) {
    std::optional<Document> document;
    if (lines_) {
      document = next_line();
      if (!document) continue;  // the file has ended
    } else {
      if (next_file_ == files_.size()) return std::nullopt;
      const fs::path& file = files_[next_file_++];
      ++counts_.files;
      if (has_lines(file)) {
        lines_.emplace(file);
        continue;
      }
      document = whole_file(file);
    }
    counts_.text_bytes += static_cast<int64_t>(document->text.size());
    if (!document->text.empty()) return document;
    ++counts_.empty_documents;
  }
}

std::optional<Document> TextSource::whole_file(const fs::path& file) {
  std::string text = InputFile(file, "text").whole(kLargestDocumentBytes);
  remove_byte_order_mark(text);
  const bool wrong = !is_valid_utf8(text);
  return Document{.text = std::move(text), .origin = file.string(), .wrong_utf8 = wrong};
}

std::optional<Document> TextSource::document_of(std::string& line) const {
  JsonLimits limits;
  limits.bytes = kLargestDocumentBytes;
  remove_byte_order_mark(line);
  if (line.find_first_not_of(" \t\r") == std::string::npos) return std::nullopt;
  const std::string origin = lines_->origin();
  if (const std::string word = line.substr(0, line.find_last_not_of(" \t\r") + 1); word == "{" || word == "[")
    throw DataError(cat(origin, ": ", word,
                        " alone begins JSON over several lines; expected one object a line: ",
                        word == "{" ? "jq -c . FILE > FILE.jsonl" : kListAdvice));
  const bool wrong = !is_valid_utf8(line);
  if (wrong) line = with_replacements(line);
  Json json = parse_json(line, origin, limits);
  // Tables that become lines have null where a row has no such field.
  const auto has = [&](const std::string& field) {
    return json.is_object() && json.contains(field) && !json[field].is_null();
  };
  const bool has_field = has(field_), has_prompt = has(kPrompt) && has(kCompletion);
  if (has_field && has_prompt && field_ != kPrompt && field_ != kCompletion)
    throw DataError(cat(origin, ": has \"", quotation(field_), "\" beside \"", kPrompt, "\" and \"",
                        kCompletion, "\": which are meant? Leave out, or rename, the others"));
  if (!has_field && has_prompt) {
    Document document{.text = string_of(json, kPrompt, origin), .origin = origin, .wrong_utf8 = wrong};
    document.prompt_bytes = std::ssize(document.text);
    document.text += string_of(json, kCompletion, origin);
    return document;
  }
  if (!has_field) {
    const bool chat = has("messages") || has("conversations");
    const bool preference = has("chosen") && has("rejected");
    if (has(kInputIds) && is_tokens(json[kInputIds]))
      throw DataError(
          cat(origin, ": has no \"", quotation(field_), "\", but \"", kInputIds, "\" of ", kTokensAdvice));
    throw DataError(cat(origin, ": has no \"", quotation(field_), "\"; ",
                        chat         ? kChatAdvice
                        : preference ? kPreferenceAdvice
                        : has("instruction") && has("output")
                            ? kInstructionAdvice
                            : cat("name the field that holds the text with ", field_flag_, ", or give a \"",
                                  kPrompt, "\" and its \"", kCompletion, "\"")));
  }
  return Document{.text = string_of(json, field_, origin), .origin = origin, .wrong_utf8 = wrong};
}

std::optional<Document> TextSource::next_line() {
  for (std::string line; lines_->next(line);) {
    try {
      if (auto document = document_of(line)) return document;
    } catch (const DataError& error) {
      if (on_bad_record_ == OnBadRecord::stop) refuse(error.what());
      counts_.bad_records.add(error.what());
    }
  }
  lines_.reset();
  return std::nullopt;
}

void TextSource::refuse(const std::string& first) {
  constexpr size_t kMostNamed = 20;
  std::vector<std::string> problems{first};
  for (; next_file_ < files_.size(); ++next_file_) {
    if (!has_lines(files_[next_file_])) continue;
    try {
      lines_.emplace(files_[next_file_]);
      for (std::string line; lines_->next(line);) document_of(line);
    } catch (const DataError& error) {
      problems.emplace_back(error.what());
    }
  }
  const std::string way_out = "--on_bad_record skip leaves out lines that are no documents, and counts them";
  if (problems.size() == 1) throw DataError(cat(first, ". ", way_out));
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMostNamed); ++i) text += "\n  " + problems[i];
  if (problems.size() > kMostNamed) text += cat("\n  and ", problems.size() - kMostNamed, " more");
  throw DataError(cat(problems.size(), " files cannot be read as documents; the first line at fault of each:",
                      text, "\n", way_out));
}

}  // namespace trireme
