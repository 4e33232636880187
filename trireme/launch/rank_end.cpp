#include "trireme/launch/rank_end.h"

#include <limits>

namespace trireme {

Json to_json(const RankEnd& end) {
  return {{"rank", end.rank},
          {"host", end.host},
          {"process", end.pid},
          {"code", end.code},
          {"signal", end.signal},
          {"asked", end.asked},
          {"killed", end.killed},
          {"waited_seconds", end.waited_seconds},
          {"stopped", end.look.stopped},
          {"known", end.look.known},
          {"waiting", end.look.waiting},
          {"still_seconds", end.look.still_seconds},
          {"doing", end.look.doing},
          {"last_lines", end.last_lines}};
}

RankEnd parse_rank_end(const Json& json, const std::string& origin) {
  const auto number = [&](const char* key, int64_t most) {
    return static_cast<int>(whole_number(json, key, {0, most}, origin));
  };
  const auto seconds = [&](const char* key) {
    return finite_number(json, key, 0, std::numeric_limits<double>::max(), origin);
  };
  RankEnd end;
  end.rank = number("rank", std::numeric_limits<int>::max());
  end.host = text_value(json, "host", origin);
  end.pid = number("process", std::numeric_limits<int>::max());
  end.code = number("code", 255);
  end.signal = number("signal", 127);
  end.asked = true_or_false(json, "asked", origin);
  end.killed = true_or_false(json, "killed", origin);
  end.waited_seconds = seconds("waited_seconds");
  end.look.stopped = true_or_false(json, "stopped", origin);
  end.look.known = true_or_false(json, "known", origin);
  end.look.waiting = true_or_false(json, "waiting", origin);
  end.look.still_seconds = seconds("still_seconds");
  end.look.doing = text_value(json, "doing", origin);
  for (const Json& line : array_value(json, "last_lines", origin))
    if (line.is_string()) end.last_lines.push_back(line.get<std::string>());
  return end;
}

}  // namespace trireme
