#include "trireme/base/safetensors.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/joined.h"
#include "trireme/base/json.h"

namespace trireme {
namespace {

constexpr int64_t length_bytes = 8;
constexpr int64_t largest_header_bytes = 100'000'000;  // the limit of the format's own library
constexpr const char* kLikelyCut = "likely an interrupted download or copy: fetch the file again";

// Guesses from the first bytes why a file is not safetensors.
std::string likely_cause(const InputFile& file) {
  std::string start(64, '\0');
  start.resize(static_cast<size_t>(file.read_some(0, start.data(), static_cast<int64_t>(start.size()))));
  if (start.rfind("version https://git-lfs", 0) == 0)
    return "this is a git-lfs pointer, not the weights: fetch them with `git lfs pull`";
  if (start.find("<html") != std::string::npos || start.find("<!DOCTYPE") != std::string::npos)
    return "this is a web page, not the weights: the download was answered by a login or error page";
  if (start.rfind("PK", 0) == 0) return "this is a zip archive (a PyTorch .bin file?), not safetensors";
  return kLikelyCut;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return cat("[", joined(shape), "]");
}

Json parse_header_json(const std::string& text, const std::string& origin) {
  try {
    // A duplicate name would hide a tensor.
    return parse_json(text, origin + ": the header",
                      {.bytes = largest_header_bytes, .refuse_equal_keys = true});
  } catch (const DataError& error) {
    throw DataError(cat(error.what(), "; likely a damaged file: fetch it again"));
  }
}

// The `offset` of the result counts from the start of the data.
SafetensorsEntry parse_entry(const InputFile& file, const std::string& name, const Json& value) {
  const std::string where = cat(file.path().string(), ": tensor '", quotation(name), "'");
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    throw DataError(
        cat(where, ": got ", quotation(value), ", expected an object with dtype, shape and data_offsets"));
  SafetensorsEntry entry;
  entry.name = name;
  entry.source = &file;
  entry.dtype = text_value(value, "dtype", where);
  if (safetensors_element_bytes(entry.dtype) == 0)
    throw DataError(cat(where, ": unknown dtype ", quotation(value["dtype"]),
                        "; expected F64, F32, F16, BF16, an integer type or BOOL"));
  const Json& shape = array_value(value, "shape", where);
  entry.elements = 1;
  int64_t needed = safetensors_element_bytes(entry.dtype);
  int64_t beside_zeros = needed;  // the strides of an empty tensor must fit too
  for (const Json& extent : shape) {
    entry.shape.push_back(whole_number(extent, {}, where + ": an extent of its shape"));
    if (__builtin_mul_overflow(entry.elements, entry.shape.back(), &entry.elements) ||
        __builtin_mul_overflow(needed, entry.shape.back(), &needed) ||
        __builtin_mul_overflow(beside_zeros, std::max<int64_t>(entry.shape.back(), 1), &beside_zeros))
      throw DataError(cat(where, ": shape ", quotation(shape), " has more bytes than 64 bits can count"));
  }
  const Json& offsets = array_value(value, "data_offsets", where);
  if (offsets.size() != 2)
    throw DataError(cat(where, ": data_offsets is ", quotation(offsets), ", expected [begin, end]"));
  const int64_t begin = whole_number(offsets[0], {}, where + ": the first of its data_offsets");
  const int64_t end = whole_number(offsets[1], {}, where + ": the second of its data_offsets");
  if (end < begin || end - begin != needed)
    throw DataError(cat(where, ": data_offsets [", begin, ", ", end, "] span ", end - begin, " bytes, but ",
                        entry.dtype, " ", shape_text(entry.shape), " needs ", needed));
  entry.bytes = needed;
  entry.offset = begin;
  return entry;
}

}  // namespace

int64_t safetensors_element_bytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> sizes = {
      {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
      {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

std::string SafetensorsEntry::describe() const {
  return cat(file().string(), ": tensor '", quotation(name), "' (", dtype, " ", shape_text(shape), ")");
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(file, "a safetensors file") {
  if (file_.bytes() < length_bytes + 2)
    throw DataError(cat(path().string(), ": ", file_.bytes(),
                        " bytes long, too short for a safetensors header; ", kLikelyCut));
  parse_header();
  check_offsets();
}

void SafetensorsFile::parse_header() {
  uint64_t length = 0;
  file_.read(0, &length, length_bytes);
  const auto room = static_cast<uint64_t>(file_.bytes() - length_bytes);
  if (length > room || length < 2 || length > static_cast<uint64_t>(largest_header_bytes))
    throw DataError(cat(path().string(), ": bytes 0 to 8 give a header of ", length,
                        " bytes, but the file has ", file_.bytes(), " bytes; ", likely_cause(file_)));
  data_at_ = length_bytes + static_cast<int64_t>(length);
  std::string text(length, '\0');
  file_.read(length_bytes, text.data(), static_cast<int64_t>(length));
  if (text.front() != '{')
    throw DataError(cat(path().string(), ": byte 8 is not '{', so no safetensors header starts there; ",
                        likely_cause(file_)));
  const Json header = parse_header_json(text, path().string());
  const int64_t data_bytes = file_.bytes() - data_at_;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) throw DataError(cat(path().string(), ": __metadata__ is not an object"));
      for (const auto& [key, content] : value.items())
        metadata_[key] = content.is_string() ? content.get<std::string>() : content.dump();
      continue;
    }
    SafetensorsEntry entry = parse_entry(file_, name, value);
    const int64_t begin = entry.offset;
    if (entry.bytes > data_bytes || begin > data_bytes - entry.bytes)
      throw DataError(cat(entry.describe(), ": its data_offsets [", begin, ", ", begin + entry.bytes,
                          "] reach past the ", data_bytes, " bytes of data that the file holds; ",
                          kLikelyCut));
    entry.offset = data_at_ + begin;
    entries_.emplace(name, std::move(entry));
  }
}

void SafetensorsFile::check_offsets() const {
  std::vector<const SafetensorsEntry*> ordered;
  for (const auto& [name, entry] : entries_) ordered.push_back(&entry);
  std::sort(ordered.begin(), ordered.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  int64_t expected = data_at_;
  for (const SafetensorsEntry* entry : ordered) {
    if (entry->offset != expected)
      throw DataError(cat(entry->describe(), ": starts at data offset ", entry->offset - data_at_,
                          ", but the tensor before it ends at ", expected - data_at_, " (",
                          entry->offset < expected ? "they overlap" : "there is a gap",
                          "); the file is damaged or was written wrongly"));
    expected = entry->offset + entry->bytes;
  }
  if (const int64_t left = file_.bytes() - expected; left != 0)
    throw DataError(cat(path().string(), ": ", left, " bytes follow the last tensor, from data offset ",
                        expected - data_at_,
                        "; the header describes none of them: the file is damaged or was written wrongly"));
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw DataError(cat(path().string(), ": tensor '", quotation(name), "' is missing (the file holds ",
                      entries_.size(), " tensors)"));
}

SafetensorsSet::SafetensorsSet(const std::filesystem::path& dir, const char* single_name) : dir_(dir) {
  const auto single = dir / single_name;
  const auto index = dir / kWeightIndexFile;
  if (is_name_taken(single)) {
    single_ = true;
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, entry] : files_.front()->entries()) entries_[name] = &entry;
    return;
  }
  if (!is_name_taken(index))
    throw DataError(
        cat(dir.string(), ": no weights: expected ", single_name, " or ", kWeightIndexFile, " there",
            is_name_taken(dir / "pytorch_model.bin") || is_name_taken(dir / "pytorch_model.bin.index.json")
                ? "; its pytorch_model.bin must be converted to safetensors first"
                : ""));
  const Json listing = read_json(index, {.refuse_equal_keys = true});  // one would hide a tensor
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, value] : object_value(listing, "weight_map", index.string()).items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (!is_plain_file_name(shard))
      throw DataError(cat(index.string(), ": weight_map of '", quotation(name), "' is ", quotation(value),
                          ", expected a file name"));
    const SafetensorsFile*& file = opened[shard];
    if (file == nullptr) {
      std::error_code error;
      if (!std::filesystem::exists(dir / shard, error) && !error)
        throw DataError(cat((dir / shard).string(), ": this shard is missing; ", index.filename().string(),
                            " places tensor '", quotation(name), "' in it: fetch it again"));
      files_.push_back(std::make_unique<SafetensorsFile>(dir / shard));
      file = files_.back().get();
    }
    entries_[name] = &file->at(name);
  }
}

const SafetensorsEntry* SafetensorsSet::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : found->second;
}

const SafetensorsEntry& SafetensorsSet::at(const std::string& name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw DataError(cat(dir_.string(), ": tensor '", quotation(name), "' is missing from the weights (",
                      entries_.size(), " tensors in ", files_.size(), " files)"));
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> all;
  all.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) all.push_back(name);
  return all;
}

int64_t SafetensorsSet::read_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->read_bytes();
  return bytes;
}

}  // namespace trireme
