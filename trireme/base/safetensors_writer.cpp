#include "trireme/base/safetensors_writer.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "trireme/base/durable_file.h"
#include "trireme/base/error.h"
#include "trireme/base/file_error.h"
#include "trireme/base/json.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/sizes.h"
#include "trireme/base/write_all.h"

namespace trireme {
namespace {

int64_t tensor_bytes(const SafetensorsSpec& spec) {
  int64_t bytes = safetensors_element_bytes(spec.dtype);
  TRIREME_ASSERT(bytes > 0, "dtype ", spec.dtype);
  for (const int64_t extent : spec.shape) bytes *= extent;
  return bytes;
}

// The length and the header, padded with spaces so that the data starts at a multiple of eight bytes.
std::string header_text(const std::vector<SafetensorsSpec>& specs,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  // Its own functions would look at all names before each new one.
  auto& entries = static_cast<std::vector<std::pair<const std::string, nlohmann::ordered_json>>&>(
      header.get_ref<nlohmann::ordered_json::object_t&>());
  if (!metadata.empty()) entries.emplace_back("__metadata__", metadata);
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const SafetensorsSpec& spec : specs) {
    TRIREME_ASSERT(names.insert(spec.name).second, "tensor ", spec.name, " twice");
    const int64_t end = offset + tensor_bytes(spec);
    entries.emplace_back(spec.name,
                         nlohmann::ordered_json{
                             {"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file, std::vector<SafetensorsSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : file_(file), partial_(file.string() + ".partial"), specs_(std::move(specs)) {
  const std::string header = header_text(specs_, metadata);
  file_bytes_ = static_cast<int64_t>(header.size());
  for (const SafetensorsSpec& spec : specs_) file_bytes_ += tensor_bytes(spec);
  descriptor_ = FileDescriptor(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!descriptor_.is_open()) fail("open", errno);
  // Reserving the space first reports a full disk now, not after minutes of writing. Not every file system
  // can.
  if (::fallocate(descriptor_.get(), 0, 0, file_bytes_) != 0 && errno != EOPNOTSUPP && errno != ENOSYS &&
      errno != EINTR)
    fail("reserve room", errno);
  put(header.data(), static_cast<int64_t>(header.size()));
}

SafetensorsWriter::~SafetensorsWriter() {
  remove_partial();
}

void SafetensorsWriter::write(const std::string& name, const void* data, int64_t bytes) {
  TRIREME_ASSERT(descriptor_.is_open(), "the file is finished");
  while (next_ < specs_.size() && written_of_next_ == tensor_bytes(specs_[next_]) &&
         specs_[next_].name != name) {
    ++next_;
    written_of_next_ = 0;
  }
  TRIREME_ASSERT(next_ < specs_.size() && specs_[next_].name == name, "tensor ", name, " out of order in ",
                 file_.string());
  TRIREME_ASSERT(written_of_next_ + bytes <= tensor_bytes(specs_[next_]), "too many bytes for ", name);
  put(data, bytes);
  written_of_next_ += bytes;
}

void SafetensorsWriter::finish() {
  while (next_ < specs_.size() && written_of_next_ == tensor_bytes(specs_[next_])) {
    ++next_;
    written_of_next_ = 0;
  }
  TRIREME_ASSERT(next_ == specs_.size(), "tensor ", specs_[next_].name, " is not complete in ",
                 file_.string());
  if (::fsync(descriptor_.get()) != 0) fail("sync", errno);
  descriptor_.close();
  try {
    publish_file(partial_, file_);
  } catch (const Error&) {
    ::unlink(partial_.c_str());
    throw;
  }
}

void SafetensorsWriter::put(const void* data, int64_t bytes) {
  const Written written = write_all(descriptor_.get(), data, static_cast<size_t>(bytes));
  if (written.error != 0) fail("write", written.error);
}

void SafetensorsWriter::fail(const std::string& doing, int error) {
  remove_partial();
  throw_file_error(cat(file_.string(), ": cannot ", doing), error,
                   cat("; the file needs ", file_bytes_, " bytes (", format_bytes(file_bytes_),
                       "); nothing was left behind"));
}

void SafetensorsWriter::remove_partial() noexcept {
  if (!descriptor_.is_open()) return;
  descriptor_.close();
  ::unlink(partial_.c_str());
}

}  // namespace trireme
