#include "trireme/measure/rate_rounds.h"

#include <map>
#include <utility>

namespace trireme {
namespace {

struct SummedTime {
  double seconds_of_one = 0;  // of one unit of the kind's amount
  double rounds = 0;
};

}  // namespace

Rates mean_of_rounds(const std::vector<Rates>& rounds) {
  std::map<WorkKind, std::map<std::pair<double, double>, SummedTime>> sums;  // by size and width
  for (const Rates& round : rounds)
    for (const auto& [kind, table] : round)
      for (const RatePoint& point : table.points) {
        SummedTime& sum = sums[kind][{point.size, point.width}];
        sum.seconds_of_one += 1 / point.per_second;
        ++sum.rounds;
      }
  Rates mean;
  for (const auto& [kind, by_size] : sums)
    for (const auto& [size_and_width, sum] : by_size)
      if (sum.rounds == static_cast<double>(rounds.size()))
        mean[kind].points.push_back(
            {size_and_width.first, size_and_width.second, sum.rounds / sum.seconds_of_one});
  return mean;
}

}  // namespace trireme
