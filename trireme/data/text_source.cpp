#include "trireme/data/text_source.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/json.h"

namespace trireme {

namespace {

namespace fs = std::filesystem;

bool is_lines(const fs::path& file) {
  return file.extension() == ".jsonl" || file.extension() == ".ndjson";
}

std::ifstream open(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError(cat(file.string(), ": cannot be opened"));
  return in;
}

bool is_binary(const fs::path& file) {
  std::ifstream in = open(file);
  std::array<char, 8192> head{};
  in.read(head.data(), head.size());
  const auto end = head.begin() + in.gcount();
  return std::find(head.begin(), end, '\0') != end;
}

}  // namespace

TextSource::TextSource(const std::vector<fs::path>& inputs, std::string field) : field_(std::move(field)) {
  for (const fs::path& input : inputs) {
    std::error_code error;
    const fs::file_status status = fs::status(input, error);
    if (!fs::exists(status)) throw ConfigError(cat("the input ", input.string(), " does not exist"));
    if (fs::is_directory(status)) {
      add_folder(input);
    } else if (fs::is_regular_file(status)) {
      if (is_binary(input))
        throw DataError(cat(input.string(), ": is binary (a zero byte in its first 8 KiB); expected text"));
      files_.push_back(input);
    } else {
      throw ConfigError(cat("the input ", input.string(), " is neither a file nor a folder"));
    }
  }
}

void TextSource::add_folder(const fs::path& root) {
  std::vector<fs::path> found, folders{root};
  std::set<fs::path> visited;  // real paths, so that links cannot go round
  while (!folders.empty()) {
    const fs::path folder = folders.back();
    folders.pop_back();
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (error || !visited.insert(real).second) continue;
    fs::directory_iterator entries(folder, error);
    if (error) throw DataError(cat(folder.string(), ": cannot be read: ", error.message()));
    // Sorted here too: which of two links to one folder is followed must not depend on the disk.
    std::vector<fs::path> inside;
    for (const auto& entry : entries) inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end(), std::greater<>());
    for (const fs::path& path : inside) {
      const fs::file_status status = fs::status(path, error);
      if (path.filename().string().starts_with('.'))
        ++counts_.hidden_entries;
      else if (fs::is_directory(status))
        folders.push_back(path);
      else if (fs::is_regular_file(status))
        found.push_back(path);
    }
  }
  std::sort(found.begin(), found.end());
  for (const fs::path& file : found) {
    if (is_binary(file))
      ++counts_.binary_files;
    else
      files_.push_back(file);
  }
}

std::optional<Document> TextSource::next() {
  while (true) {
    std::optional<Document> document;
    if (lines_.is_open()) {
      document = next_line();
      if (!document) continue;  // the file has ended
    } else {
      if (next_file_ == files_.size()) return std::nullopt;
      const fs::path& file = files_[next_file_++];
      ++counts_.files;
      if (is_lines(file)) {
        lines_ = open(file);
        lines_file_ = file;
        line_ = 0;
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
  std::ifstream in = open(file);
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad() || text.bad()) throw DataError(cat(file.string(), ": cannot be read to its end"));
  return Document{std::move(text).str(), file.string()};
}

std::optional<Document> TextSource::next_line() {
  std::string line;
  while (std::getline(lines_, line)) {
    ++line_;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string origin = cat(lines_file_.string(), ":", line_);
    Json json;
    try {
      json = Json::parse(line);
    } catch (const Json::parse_error& error) {
      throw DataError(cat(origin, ": not valid JSON: ", error.what()));
    }
    if (!json.is_object() || !json.contains(field_))
      throw DataError(
          cat(origin, ": has no \"", field_, "\"; name the field that holds the text with --field"));
    if (!json[field_].is_string())
      throw DataError(cat(origin, ": \"", field_, "\" is ", json[field_].type_name(), "; expected a string"));
    return Document{std::move(json[field_].get_ref<std::string&>()), origin};
  }
  if (lines_.bad()) throw DataError(cat(lines_file_.string(), ":", line_, ": cannot be read further"));
  lines_.close();
  lines_.clear();
  return std::nullopt;
}

}  // namespace trireme
