#include "trireme/base/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/error.h"
#include "trireme/base/json.h"

namespace trireme {
namespace {

constexpr int64_t length_bytes = 8;
constexpr int64_t largest_header_bytes = 100'000'000;  // the limit of the format's own library

// What the first bytes tell about a file that is not safetensors.
std::string likely_cause(const std::byte* data, int64_t bytes) {
  const std::string start(reinterpret_cast<const char*>(data),
                          static_cast<size_t>(std::min<int64_t>(bytes, 64)));
  if (start.rfind("version https://git-lfs", 0) == 0)
    return "this is a git-lfs pointer, not the weights: fetch them with `git lfs pull`";
  if (start.find("<html") != std::string::npos || start.find("<!DOCTYPE") != std::string::npos)
    return "this is a web page, not the weights: the download was answered by a login or error page";
  if (start.rfind("PK", 0) == 0) return "this is a zip archive (a PyTorch .bin file?), not safetensors";
  return "likely an interrupted download or copy: fetch the file again";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

// nlohmann keeps the last of two equal keys; here that would hide a tensor.
Json parse_header_json(const std::string& text, const std::string& origin) {
  std::set<std::string> seen;
  const auto refuse_duplicates = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key && !seen.insert(parsed.get<std::string>()).second)
      throw DataError(
          cat(origin, ": tensor '", parsed.get<std::string>(), "' is listed twice in the header"));
    return true;
  };
  try {
    return Json::parse(text, refuse_duplicates);
  } catch (const Json::parse_error& error) {
    throw DataError(cat(origin, ": the header is not valid JSON (byte ", length_bytes + error.byte,
                        " of the file): ", error.what(), "; likely a damaged file: fetch it again"));
  } catch (const Json::exception& error) {
    throw DataError(cat(origin, ": the header is not valid JSON: ", error.what(),
                        "; likely a damaged file: fetch it again"));
  }
}

// A count from JSON: whole and not negative.
int64_t natural(const Json& value, const std::string& what) {
  if (!value.is_number_unsigned() ||
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    throw DataError(cat(what, ": got ", value.dump(), ", expected a whole number >= 0"));
  return value.get<int64_t>();
}

SafetensorsEntry parse_entry(const std::filesystem::path& file, const std::string& name, const Json& value) {
  const std::string where = cat(file.string(), ": tensor '", name, "'");
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    throw DataError(
        cat(where, ": got ", value.dump(), ", expected an object with dtype, shape and data_offsets"));
  SafetensorsEntry entry;
  entry.name = name;
  entry.file = file;
  const Json& dtype = value["dtype"];
  const Json& shape = value["shape"];
  if (!dtype.is_string() || safetensors_element_bytes(dtype.get<std::string>()) == 0)
    throw DataError(cat(where, ": unknown dtype ", dtype.dump(),
                        "; expected F64, F32, F16, BF16, an integer type or BOOL"));
  entry.dtype = dtype.get<std::string>();
  if (!shape.is_array()) throw DataError(cat(where, ": shape is ", shape.dump(), ", expected a list"));
  entry.elements = 1;
  int64_t needed = safetensors_element_bytes(entry.dtype);
  for (const Json& extent : shape) {
    entry.shape.push_back(natural(extent, where + ": shape"));
    if (__builtin_mul_overflow(entry.elements, entry.shape.back(), &entry.elements) ||
        __builtin_mul_overflow(needed, entry.shape.back(), &needed))
      throw DataError(cat(where, ": shape ", shape.dump(), " has more bytes than 64 bits can count"));
  }
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    throw DataError(cat(where, ": data_offsets is ", offsets.dump(), ", expected [begin, end]"));
  const int64_t begin = natural(offsets[0], where + ": data_offsets");
  const int64_t end = natural(offsets[1], where + ": data_offsets");
  if (end < begin || end - begin != needed)
    throw DataError(cat(where, ": data_offsets [", begin, ", ", end, "] span ", end - begin, " bytes, but ",
                        entry.dtype, " ", shape_text(entry.shape), " needs ", needed));
  entry.bytes = needed;
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
  return cat(file.string(), ": tensor '", name, "' (", dtype, " ", shape_text(shape), ")");
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw DataError(cat(file.string(), ": cannot be opened: ", std::strerror(errno)));
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw DataError(cat(file.string(), ": not a regular file; expected a safetensors file"));
  }
  file_bytes_ = status.st_size;
  if (file_bytes_ < length_bytes + 2) {
    ::close(descriptor);
    throw DataError(cat(file.string(), ": ", file_bytes_,
                        " bytes long, too short for a safetensors header; likely an "
                        "interrupted download or copy: fetch the file again"));
  }
  void* map = ::mmap(nullptr, static_cast<size_t>(file_bytes_), PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int map_error = errno;
  ::close(descriptor);
  if (map == MAP_FAILED)
    throw DataError(cat(file.string(), ": cannot be mapped into memory: ", std::strerror(map_error)));
  map_ = static_cast<const std::byte*>(map);
  try {
    parse_header();
    check_offsets();
  } catch (...) {
    ::munmap(map, static_cast<size_t>(file_bytes_));
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  ::munmap(const_cast<std::byte*>(map_), static_cast<size_t>(file_bytes_));
}

void SafetensorsFile::parse_header() {
  uint64_t length = 0;
  std::memcpy(&length, map_, sizeof(length));
  const auto room = static_cast<uint64_t>(file_bytes_ - length_bytes);
  if (length > room || length < 2 || length > static_cast<uint64_t>(largest_header_bytes))
    throw DataError(cat(file_.string(), ": bytes 0 to 8 give a header of ", length,
                        " bytes, but the file has ", file_bytes_, " bytes; ",
                        likely_cause(map_, file_bytes_)));
  header_bytes_ = static_cast<int64_t>(length);
  const std::string text(reinterpret_cast<const char*>(map_) + length_bytes, length);
  if (text.front() != '{')
    throw DataError(cat(file_.string(), ": byte 8 is not '{', so no safetensors header starts there; ",
                        likely_cause(map_, file_bytes_)));
  const Json header = parse_header_json(text, file_.string());
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) throw DataError(cat(file_.string(), ": __metadata__ is not an object"));
      for (const auto& [key, content] : value.items())
        metadata_[key] = content.is_string() ? content.get<std::string>() : content.dump();
      continue;
    }
    SafetensorsEntry entry = parse_entry(file_, name, value);
    const int64_t begin = value["data_offsets"][0].get<int64_t>();
    const int64_t data_bytes = file_bytes_ - length_bytes - header_bytes_;
    if (begin + entry.bytes > data_bytes)
      throw DataError(cat(entry.describe(), ": its data_offsets [", begin, ", ", begin + entry.bytes,
                          "] reach past the ", data_bytes,
                          " bytes of data that the file holds; likely an interrupted ",
                          "download or copy: fetch the file again"));
    entry.data = map_ + length_bytes + header_bytes_ + begin;
    entries_.emplace(name, std::move(entry));
  }
}

void SafetensorsFile::check_offsets() const {
  std::vector<const SafetensorsEntry*> ordered;
  for (const auto& [name, entry] : entries_) ordered.push_back(&entry);
  std::sort(ordered.begin(), ordered.end(), [](const SafetensorsEntry* a, const SafetensorsEntry* b) {
    return a->data != b->data ? a->data < b->data : a->bytes < b->bytes;
  });
  const std::byte* const start = map_ + length_bytes + header_bytes_;
  const std::byte* expected = start;
  for (const SafetensorsEntry* entry : ordered) {
    if (entry->data != expected)
      throw DataError(cat(entry->describe(), ": starts at data offset ", entry->data - start,
                          ", but the tensor before it ", "ends at ", expected - start, " (",
                          entry->data < expected ? "they overlap" : "there is a gap",
                          "); the file is damaged or was written wrongly"));
    expected = entry->data + entry->bytes;
  }
  if (const int64_t left = map_ + file_bytes_ - expected; left != 0)
    throw DataError(cat(file_.string(), ": ", left, " bytes follow the last tensor, from data offset ",
                        expected - start,
                        "; the header describes none of them: the file is damaged or was written wrongly"));
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw DataError(
      cat(file_.string(), ": tensor '", name, "' is missing (the file holds ", entries_.size(), " tensors)"));
}

SafetensorsSet::SafetensorsSet(const std::filesystem::path& dir) : dir_(dir) {
  const auto single = dir / "model.safetensors";
  const auto index = dir / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) {
    files_.push_back(std::make_unique<SafetensorsFile>(single));
    for (const auto& [name, entry] : files_.front()->entries()) entries_[name] = &entry;
    return;
  }
  if (!std::filesystem::exists(index))
    throw DataError(cat(dir.string(),
                        ": no weights: expected model.safetensors or model.safetensors.index.json there",
                        std::filesystem::exists(dir / "pytorch_model.bin") ||
                                std::filesystem::exists(dir / "pytorch_model.bin.index.json")
                            ? "; its pytorch_model.bin must be converted to safetensors first"
                            : ""));
  const Json listing = read_json(index);
  if (!listing.is_object() || !listing.contains("weight_map") || !listing["weight_map"].is_object())
    throw DataError(
        cat(index.string(), ": expected an object with a `weight_map` of tensor name to file name"));
  std::map<std::string, const SafetensorsFile*> opened;
  for (const auto& [name, value] : listing["weight_map"].items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (shard.empty() || std::filesystem::path(shard).filename() != shard)
      throw DataError(
          cat(index.string(), ": weight_map of '", name, "' is ", value.dump(), ", expected a file name"));
    const SafetensorsFile*& file = opened[shard];
    if (file == nullptr) {
      if (!std::filesystem::exists(dir / shard))
        throw DataError(cat((dir / shard).string(), ": this shard is missing; ", index.filename().string(),
                            " places tensor '", name, "' in it: fetch it again"));
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
  throw DataError(cat(dir_.string(), ": tensor '", name, "' is missing from the weights (", entries_.size(),
                      " tensors in ", files_.size(), " files)"));
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> all;
  all.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) all.push_back(name);
  return all;
}

}  // namespace trireme
