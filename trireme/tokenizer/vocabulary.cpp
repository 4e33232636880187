#include "trireme/tokenizer/vocabulary.h"

#include <limits>

#include "trireme/base/error.h"

namespace trireme {

Vocabulary read_vocabulary(const Json& model, const std::string& origin) {
  const Json& listed = object_value(model, "vocab", origin + ": model");
  Vocabulary vocabulary;
  vocabulary.reserve(listed.size());
  for (const auto& [token, id] : listed.items())
    vocabulary.emplace(
        token, static_cast<int32_t>(whole_number(id, {0, std::numeric_limits<int32_t>::max() - 1},
                                                 cat(origin, ": the id of \"", quotation(token), "\""))));
  return vocabulary;
}

}  // namespace trireme
