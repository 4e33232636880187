#include "trireme/cli/config_document.h"

#include "trireme/base/input_file.h"

namespace trireme {
namespace {

constexpr int64_t kMostBytes = int64_t{4} << 20;

}  // namespace

bool is_yaml(const std::filesystem::path& file) {
  return file.extension() == ".yaml" || file.extension() == ".yml";
}

ConfigDocument read_document(const std::filesystem::path& file) {
  ConfigDocument document;
  const std::string origin = file.string();
  document.text = InputFile(file, "a JSON or YAML file").whole(kMostBytes);
  JsonLimits limits;
  limits.refuse_equal_keys = true;
  document.json =
      is_yaml(file) ? parse_yaml(document.text, origin) : parse_json(document.text, origin, limits);
  return document;
}

ConfigDocument read_config_document(const std::filesystem::path& file) {
  ConfigDocument document = read_document(file);
  if (!document.json.is_object())
    throw DataError(cat(quotation(file.string()), ": got ", quotation(document.json),
                        "; expected an object of names and values"));
  return document;
}

}  // namespace trireme
