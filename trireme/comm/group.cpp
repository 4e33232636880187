#include "trireme/comm/group.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

Group::Group(std::string name, std::shared_ptr<c10d::Backend> backend, std::vector<int> world_ranks, int rank,
             std::chrono::milliseconds timeout, std::shared_ptr<RankActivity> activity)
    : name_(std::move(name)),
      backend_(std::move(backend)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      timeout_(timeout),
      activity_(activity ? std::move(activity) : std::make_shared<RankActivity>()) {
  TRIREME_ASSERT(rank_ >= 0 && rank_ < size(), "group '", name_, "' of ", size(), " ranks, this rank ",
                 rank_);
  TRIREME_ASSERT(size() == 1 || backend_ != nullptr, "group '", name_, "' of ", size(),
                 " ranks has no backend");
}

c10d::Backend& Group::backend() const {
  TRIREME_ASSERT(backend_ != nullptr, "group '", name_, "' of one rank has no backend");
  return *backend_;
}

void Group::count(const std::string& collective, int64_t sent_bytes, CallTime time) {
  Traffic& entry = traffic_[collective];
  entry.calls += 1;
  entry.sent_bytes += sent_bytes;
  seconds_[collective].add(std::move(time));
}

const std::map<std::string, Traffic>& Group::traffic() const {
  for (const auto& [collective, seconds] : seconds_) traffic_.at(collective).seconds = seconds.total();
  return traffic_;
}

void Group::reset_traffic() {
  traffic_.clear();
  seconds_.clear();
}

}  // namespace trireme
