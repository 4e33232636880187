#include "trireme/device/memory_account.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace trireme {
namespace {

// The only state that is not passed as an argument: libtorch calls its allocator deep inside an operation
// with only a number of bytes, so only the calling thread can tell the account and the category.
MemoryOwner& owner_of_thread() {
  thread_local MemoryOwner owner;
  return owner;
}

void count_peak(MemoryUse& use, MemoryCategory category) {
  use.peak[category] = std::max(use.peak[category], use.now[category]);
  const int64_t total = use.now.total();
  if (total > use.peak_total_bytes) {
    use.peak_total_bytes = total;
    use.at_peak = use.now;
  }
}

}  // namespace

MemoryAccount::MemoryAccount(MemorySpace host) : host_(host), options_(usual_memory_options()) {
  if (host == MemorySpace::device) return;
  for (MemoryOption& option : usual_memory_options()) {
    option.space = MemorySpace::host;
    options_.push_back(std::move(option));
  }
}

void MemoryAccount::add(MemoryCategory category, int64_t bytes, MemorySpace space) {
  const std::lock_guard lock(mutex_);
  MemoryUse& use = this->use(space);
  use.now[category] += bytes;
  count_peak(use, category);
}

void MemoryAccount::move(MemoryCategory from, MemoryCategory to, int64_t bytes, MemorySpace space) {
  const std::lock_guard lock(mutex_);
  MemoryUse& use = this->use(space);
  use.now[from] -= bytes;
  use.now[to] += bytes;
  count_peak(use, to);
}

MemoryState MemoryAccount::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

MemoryBytes MemoryAccount::held(MemorySpace space) const {
  const std::lock_guard lock(mutex_);
  return counted_as(space) == MemorySpace::host ? state_.host.now : state_.now;
}

void MemoryAccount::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (MemoryUse* use : std::initializer_list<MemoryUse*>{&state_, &state_.host}) {
    use->peak = use->at_peak = use->now;
    use->peak_total_bytes = use->now.total();
  }
}

void MemoryAccount::set_options(std::vector<MemoryOption> options) {
  const std::lock_guard lock(mutex_);
  options_ = std::move(options);
}

std::vector<MemoryOption> MemoryAccount::options(MemorySpace space) const {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryOption> options;
  std::copy_if(options_.begin(), options_.end(), std::back_inserter(options),
               [&](const MemoryOption& option) { return option.space == counted_as(space); });
  return options;
}

MemoryScope::MemoryScope(MemoryCategory category) : changes_account_(false) {
  before_.category = std::exchange(owner_of_thread().category, category);
}

MemoryScope::MemoryScope(std::shared_ptr<MemoryAccount> account, MemoryCategory category)
    : before_(std::exchange(owner_of_thread(), {std::move(account), category})), changes_account_(true) {}

MemoryScope::~MemoryScope() {
  MemoryOwner& owner = owner_of_thread();
  owner.category = before_.category;
  if (changes_account_) owner.account = std::move(before_.account);
}

const MemoryOwner& MemoryScope::current() {
  return owner_of_thread();
}

}  // namespace trireme
