#include "trireme/cli/config_document.h"

#include <utility>

#include "trireme/base/input_file.h"

namespace trireme {

bool is_yaml(const std::filesystem::path& file) {
  return file.extension() == ".yaml" || file.extension() == ".yml";
}

ConfigDocument read_document(const std::filesystem::path& file) {
  constexpr int64_t kMostBytes = int64_t{4} << 20;
  const std::string origin = file.string();
  std::string text = InputFile(file, "a JSON or YAML file").whole(kMostBytes);
  Json json =
      is_yaml(file) ? parse_yaml(text, origin) : parse_json(text, origin, {.refuse_equal_keys = true});
  return {std::move(text), std::move(json)};
}

ConfigDocument read_config_document(const std::filesystem::path& file) {
  ConfigDocument document = read_document(file);
  if (!document.json.is_object())
    throw DataError(cat(quotation(file.string()), ": got ", quotation(document.json),
                        "; expected an object of names and values"));
  return document;
}

}  // namespace trireme
