#include "trireme/base/rank_activity.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr uint64_t kActivityMagic = 0x3254434154525254;  // changes with the layout of the page
constexpr size_t kActivityPage_bytes = 4096;
constexpr size_t kActionWords = 12;

}  // namespace

// One state, in 64-bit words.
struct ActivitySlot {
  std::atomic<uint64_t> phase{0};
  std::atomic<int64_t> step{0};
  std::atomic<int64_t> layer{-1};
  std::atomic<uint64_t> direction{0};
  std::atomic<uint64_t> waiting{0};
  std::atomic<int64_t> changed_nanoseconds{0};
  std::array<std::atomic<uint64_t>, kActionWords> action{};
};

// The state after `changes` changes lies in slot changes % 2; the next state is written into the other slot.
struct ActivityPage {
  std::atomic<uint64_t> magic{0};
  std::atomic<uint64_t> changes{0};
  std::array<ActivitySlot, 2> slots;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "two processes share the page");
static_assert(sizeof(ActivityPage) <= kActivityPage_bytes);

namespace {

int64_t monotonic_nanoseconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

// A release store: a reader that sees this value also sees the change count stored before it.
template <typename Field, typename Value>
void put(Field& field, Value value) {
  field.store(value, std::memory_order_release);
}

template <typename Change>
void change(ActivityPage& page, Change&& make) {
  const uint64_t changes = page.changes.load(std::memory_order_relaxed);
  const ActivitySlot& last = page.slots[changes % 2];
  ActivitySlot& next = page.slots[(changes + 1) % 2];
  const auto copy = [](const auto& from, auto& to) { put(to, from.load(std::memory_order_relaxed)); };
  copy(last.phase, next.phase);
  copy(last.step, next.step);
  copy(last.layer, next.layer);
  copy(last.direction, next.direction);
  copy(last.waiting, next.waiting);
  for (size_t word = 0; word < kActionWords; ++word) copy(last.action[word], next.action[word]);
  make(next);
  put(next.changed_nanoseconds, monotonic_nanoseconds());
  put(page.changes, changes + 1);
}

RankActivityState copy_of(const ActivitySlot& slot) {
  const auto get = [](const auto& field) { return field.load(std::memory_order_acquire); };
  RankActivityState state;
  // Another process writes the page: a value outside the enumerations must not get through.
  state.phase =
      static_cast<RankPhase>(std::min<uint64_t>(get(slot.phase), static_cast<uint64_t>(RankPhase::ending)));
  state.step = get(slot.step);
  state.layer = get(slot.layer);
  state.direction = static_cast<PassDirection>(
      std::min<uint64_t>(get(slot.direction), static_cast<uint64_t>(PassDirection::backward)));
  state.waiting = get(slot.waiting) != 0;
  state.seconds =
      static_cast<double>(std::max<int64_t>(0, monotonic_nanoseconds() - get(slot.changed_nanoseconds))) /
      1e9;
  std::array<char, kActionWords * sizeof(uint64_t)> text{};
  for (size_t word = 0; word < kActionWords; ++word) {
    const uint64_t bytes = get(slot.action[word]);
    std::memcpy(text.data() + word * sizeof bytes, &bytes, sizeof bytes);
  }
  state.action.assign(text.data(), ::strnlen(text.data(), text.size()));
  return state;
}

RankActivityState read_state(const ActivityPage& page) {
  // Only a program that writes to the page without pause makes a reader reach this limit.
  constexpr int kMostLooks = 1'000'000;
  for (int look = 0;; ++look) {
    const uint64_t before = page.changes.load(std::memory_order_acquire);
    RankActivityState state = copy_of(page.slots[before % 2]);
    if (page.changes.load(std::memory_order_relaxed) == before || look == kMostLooks) return state;
  }
}

std::shared_ptr<ActivityPage> map_page(int descriptor) {
  void* const memory =
      ::mmap(nullptr, kActivityPage_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw ConfigError(cat("cannot map a page of memory: ", std::strerror(errno)));
  return {static_cast<ActivityPage*>(memory),
          [](ActivityPage* page) { ::munmap(static_cast<void*>(page), kActivityPage_bytes); }};
}

const char* text_of(RankPhase phase) {
  switch (phase) {
    case RankPhase::starting:
      return "starting";
    case RankPhase::connecting:
      return "connecting to the other ranks";
    case RankPhase::preparing:
      return "preparing the run";
    case RankPhase::training:
      return "training";
    case RankPhase::evaluating:
      return "evaluating";
    case RankPhase::saving:
      return "saving a checkpoint";
    case RankPhase::ending:
      return "ending";
  }
  return "";
}

}  // namespace

std::string describe_progress(const RankActivityState& state) {
  if (state.step == 0) return "";
  std::string text = cat("step ", state.step);
  if (state.layer >= 0) text += cat(", layer ", state.layer);
  if (state.layer >= 0 && state.direction != PassDirection::none)
    text += state.direction == PassDirection::forward ? " forward" : " backward";
  return text;
}

std::string describe(const RankActivityState& state) {
  const bool trains = state.phase == RankPhase::training;
  std::string text = state.waiting ? cat("in ", state.action) : trains ? "computing" : text_of(state.phase);
  text += cat(" for ", static_cast<int64_t>(state.seconds), " s");
  if (!state.waiting && !state.action.empty()) text += cat(", after ", state.action);
  if (state.waiting && !trains) text += cat(", ", text_of(state.phase));
  const std::string progress = describe_progress(state);
  return progress.empty() ? text : cat(text, ", ", progress);
}

RankActivity::RankActivity() : page_(std::make_shared<ActivityPage>()) {
  set_phase(RankPhase::starting);
}

RankActivity::RankActivity(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || status.st_size != static_cast<off_t>(kActivityPage_bytes))
    throw ConfigError(cat("environment variable TRIREME_ACTIVITY_FD is ", descriptor,
                          ", which is no page that a launcher made; unset it"));
  page_ = map_page(descriptor);
  ::close(descriptor);
  put(page_->slots[0].layer, int64_t{-1});
  set_phase(RankPhase::starting);
  page_->magic.store(kActivityMagic, std::memory_order_release);
}

RankActivity RankActivity::from_environment() {
  const auto descriptor = environment_integer("TRIREME_ACTIVITY_FD");
  // One process is one rank: a second world of this process, or a child process, must not use the launcher's
  // page.
  if (!descriptor) return {};
  ::unsetenv("TRIREME_ACTIVITY_FD");
  return RankActivity(static_cast<int>(*descriptor));
}

void RankActivity::set_phase(RankPhase phase) {
  change(*page_, [&](ActivitySlot& next) { put(next.phase, static_cast<uint64_t>(phase)); });
}

void RankActivity::set_step(int64_t step) {
  change(*page_, [&](ActivitySlot& next) { put(next.step, step); });
}

void RankActivity::set_layer(int64_t layer, PassDirection direction) {
  change(*page_, [&](ActivitySlot& next) {
    put(next.layer, layer);
    put(next.direction, static_cast<uint64_t>(direction));
  });
}

void RankActivity::begin_wait(std::string_view action, std::string_view group) {
  std::array<char, kActionWords * sizeof(uint64_t)> text{};
  size_t size = 0;
  const auto add = [&](std::string_view more) {
    const size_t count = std::min(more.size(), text.size() - 1 - size);
    more.copy(text.data() + size, count);
    size += count;
  };
  add(action);
  if (!group.empty()) {
    add(" of group '");
    add(group);
    add("'");
  }
  change(*page_, [&](ActivitySlot& next) {
    for (size_t word = 0; word < kActionWords; ++word) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, text.data() + word * sizeof bytes, sizeof bytes);
      put(next.action[word], bytes);
    }
    put(next.waiting, uint64_t{1});
  });
}

void RankActivity::end_wait() {
  change(*page_, [&](ActivitySlot& next) { put(next.waiting, uint64_t{0}); });
}

RankActivityState RankActivity::state() const {
  return read_state(*page_);
}

ActivityReader::ActivityReader()
    : descriptor_(::memfd_create("trireme-rank-activity", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  // If a rank could shorten the page, SIGBUS would end the launcher.
  if (descriptor_ < 0 || ::ftruncate(descriptor_, kActivityPage_bytes) != 0 ||
      ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int reason = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw ConfigError(cat("cannot make a page of shared memory for a rank: ", std::strerror(reason)));
  }
  page_ = map_page(descriptor_);
}

ActivityReader::~ActivityReader() {
  close_descriptor();
}

ActivityReader::ActivityReader(ActivityReader&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), page_(std::move(other.page_)) {}

void ActivityReader::close_descriptor() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

std::optional<RankActivityState> ActivityReader::read() const {
  if (page_->magic.load(std::memory_order_acquire) != kActivityMagic) return std::nullopt;
  return read_state(*page_);
}

}  // namespace trireme
