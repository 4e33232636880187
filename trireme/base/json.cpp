#include "trireme/base/json.h"

#include <fstream>
#include <sstream>

#include "trireme/base/error.h"

namespace trireme {

Json parse_json(const std::string& text, const std::string& origin) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const size_t at = std::min(error.byte == 0 ? size_t{0} : error.byte - 1, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    throw DataError(cat(origin, ": not valid JSON at line ", line, " (byte ", at, "): ", error.what()));
  } catch (const Json::exception& error) {  // such as a number that no double holds
    throw DataError(cat(origin, ": not valid JSON: ", error.what()));
  }
}

Json read_json(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError(cat(file.string(), ": cannot be opened; expected a JSON file there"));
  std::ostringstream text;
  text << in.rdbuf();
  return parse_json(text.str(), file.string());
}

}  // namespace trireme
