#include "trireme/train/saved_losses.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme {

std::vector<double> saved_losses(const Json& state, const std::string& key, size_t most,
                                 const std::string& origin) {
  std::vector<double> losses;
  for (const Json& loss : array_value(state, key, origin)) {
    if (!loss.is_number() || !std::isfinite(loss.get<double>()))
      throw DataError(cat(origin, ": ", key, " holds ", quotation(loss), "; expected losses"));
    losses.push_back(loss.get<double>());
  }
  if (losses.size() > most)
    throw DataError(cat(origin, ": ", key, " holds ", losses.size(), " losses; expected ", most, " at most"));
  return losses;
}

}  // namespace trireme
