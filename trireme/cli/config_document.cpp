#include "trireme/cli/config_document.h"

#include "trireme/base/input_file.h"

namespace trireme {
namespace {

constexpr int64_t kMostBytes = int64_t{4} << 20;

}  // namespace

ConfigDocument read_config_document(const std::filesystem::path& file) {
  ConfigDocument document;
  const std::string origin = file.string();
  document.text = InputFile(file, "a JSON or YAML file").whole(kMostBytes);
  JsonLimits limits;
  limits.refuse_equal_keys = true;
  const bool yaml = file.extension() == ".yaml" || file.extension() == ".yml";
  document.json = yaml ? parse_yaml(document.text, origin) : parse_json(document.text, origin, limits);
  if (!document.json.is_object())
    throw DataError(cat(quotation(origin), ": got ", quotation(document.json),
                        "; expected an object of names and values"));
  return document;
}

}  // namespace trireme
