// A rank's end as launchers send it to each other.
#pragma once

#include <string>

#include "trireme/base/json.h"
#include "trireme/launch/rank_end.h"

namespace trireme {

Json to_json(const RankEnd& end);
// Throws DataError, which names `origin`.
RankEnd parse_rank_end(const Json& json, const std::string& origin);

}  // namespace trireme
