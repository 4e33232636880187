#include "python/operators/group_members.h"

#include <memory>
#include <numeric>
#include <utility>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// All-to-all only: the one collective that attention of shards is made of.
class MembersBackend final : public c10d::Backend {
 public:
  MembersBackend(c10::intrusive_ptr<c10d::Backend> whole, std::vector<int> members, int rank)
      : Backend(rank, static_cast<int>(members.size())),
        whole_(std::move(whole)),
        members_(std::move(members)) {}

  const std::string getBackendName() const override { return whole_->getBackendName(); }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& receive, std::vector<int64_t>& send,
                                               const c10d::AllToAllOptions& options) override {
    std::vector<int64_t> receive_of_all = of_all(receive), send_of_all = of_all(send);
    return whole_->alltoall_base(output, input, receive_of_all, send_of_all, options);
  }

 private:
  std::vector<int64_t> of_all(const std::vector<int64_t>& of_members) const {
    std::vector<int64_t> all(static_cast<size_t>(whole_->getSize()), 0);
    for (size_t i = 0; i < members_.size(); ++i) all[static_cast<size_t>(members_[i])] = of_members[i];
    return all;
  }

  const c10::intrusive_ptr<c10d::Backend> whole_;
  const std::vector<int> members_;  // ascending, so that blocks keep their order
};

Group alone() {
  return {"alone", nullptr, {0}, 0, std::chrono::milliseconds(0)};
}

Group group_of(const std::string& name, const c10::intrusive_ptr<c10d::Backend>& whole,
               const std::vector<int>& members, int rank) {
  if (members.size() == 1) return alone();
  c10::intrusive_ptr<c10d::Backend> backend = whole;
  if (static_cast<int>(members.size()) < whole->getSize())
    backend = c10::make_intrusive<MembersBackend>(whole, members, rank);
  // The process group stays the caller's: this pointer only keeps its backend alive.
  std::shared_ptr<c10d::Backend> kept(backend.get(), [backend](c10d::Backend*) {});
  return {name, std::move(kept), members, rank, whole->getBackendOptions()->timeout};
}

}  // namespace

SequenceGroups sequence_groups(const std::string& name, int64_t ring, at::Device device) {
  if (name.empty()) return {alone(), alone()};
  const c10::intrusive_ptr<c10d::ProcessGroup> group = c10d::resolve_process_group(name);
  if (ring < 1 || group->getSize() % ring != 0)
    throw ConfigError(cat("ring: got ", ring, " for a group of ", group->getSize(),
                          " ranks, expected a divisor of its size"));
  const int rank = group->getRank(), ring_size = static_cast<int>(ring),
            ulysses_size = group->getSize() / ring_size;
  std::vector<int> ulysses(static_cast<size_t>(ulysses_size)), across(static_cast<size_t>(ring_size));
  std::iota(ulysses.begin(), ulysses.end(), rank / ulysses_size * ulysses_size);
  for (int i = 0; i < ring_size; ++i) across[static_cast<size_t>(i)] = i * ulysses_size + rank % ulysses_size;
  const c10::intrusive_ptr<c10d::Backend> backend = group->getBackend(device.type());
  return {group_of(cat(name, ", ulysses"), backend, ulysses, rank % ulysses_size),
          group_of(cat(name, ", ring"), backend, across, rank / ulysses_size)};
}

}  // namespace trireme
