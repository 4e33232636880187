#include "trireme/base/rank_activity.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/environment.h"
#include "trireme/base/error.h"

namespace trireme {

namespace {

constexpr uint64_t kActivityMagic = 0x3254434154525254;  // changes with the layout of the page
constexpr size_t kActivityPage_bytes = 4096;

// One state, as it lies in a page. Another process may have written it.
struct StateOnPage {
  uint64_t phase = 0;
  int64_t step = 0;
  int64_t layer = -1;
  uint64_t direction = 0;
  uint64_t waiting = 0;
  int64_t changed_nanoseconds = 0;
  std::array<char, 96> action{};  // ends in a zero
};
using StateWords = std::array<uint64_t, sizeof(StateOnPage) / sizeof(uint64_t)>;

}  // namespace

// The state after `changes` changes lies in slot changes % 2; the next state is written into the other slot.
struct ActivityPage {
  std::atomic<uint64_t> magic{0};
  std::atomic<uint64_t> changes{0};
  std::array<std::array<std::atomic<uint64_t>, std::tuple_size_v<StateWords>>, 2> slots{};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "two processes share the page");
static_assert(sizeof(ActivityPage) <= kActivityPage_bytes);

namespace {

int64_t monotonic_nanoseconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

StateOnPage state_after(const ActivityPage& page, uint64_t changes) {
  StateWords words{};
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = page.slots[changes % 2][i].load(std::memory_order_acquire);
  return std::bit_cast<StateOnPage>(words);
}

void publish(ActivityPage& page, uint64_t changes, StateOnPage state) {
  state.changed_nanoseconds = monotonic_nanoseconds();
  const auto words = std::bit_cast<StateWords>(state);
  // Release stores: a reader that sees one of them also sees the change count stored before it.
  for (size_t i = 0; i < words.size(); ++i)
    page.slots[changes % 2][i].store(words[i], std::memory_order_release);
  page.changes.store(changes, std::memory_order_release);
}

template <typename Change>
void change(ActivityPage& page, const Change& make) {
  const uint64_t changes = page.changes.load(std::memory_order_relaxed);
  StateOnPage state = state_after(page, changes);
  make(state);
  publish(page, changes + 1, state);
}

// A value outside the enumeration must not get through.
template <typename Enum>
Enum at_most(uint64_t value, Enum last) {
  return static_cast<Enum>(std::min(value, static_cast<uint64_t>(last)));
}

RankActivityState checked(const StateOnPage& state) {
  const int64_t nanoseconds = monotonic_nanoseconds() - state.changed_nanoseconds;
  return {.phase = at_most(state.phase, RankPhase::ending),
          .step = state.step,
          .layer = state.layer,
          .direction = at_most(state.direction, PassDirection::backward),
          .action = std::string(state.action.data(), ::strnlen(state.action.data(), state.action.size())),
          .waiting = state.waiting != 0,
          .seconds = static_cast<double>(std::max<int64_t>(0, nanoseconds)) / 1e9};
}

RankActivityState read_state(const ActivityPage& page) {
  // Only a program that writes to the page without pause makes a reader reach this limit.
  constexpr int kMostLooks = 1'000'000;
  for (int look = 0;; ++look) {
    const uint64_t before = page.changes.load(std::memory_order_acquire);
    const StateOnPage state = state_after(page, before);
    if (page.changes.load(std::memory_order_relaxed) == before || look == kMostLooks) return checked(state);
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
  constexpr std::array kTexts{"starting",
                              "connecting to the other ranks",
                              "preparing the run",
                              "training",
                              "evaluating",
                              "saving a checkpoint",
                              "ending"};
  return kTexts.at(static_cast<size_t>(phase));
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
  publish(*page_, 1, {});
}

RankActivity::RankActivity(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0 || status.st_size != static_cast<off_t>(kActivityPage_bytes))
    throw ConfigError(cat("environment variable TRIREME_ACTIVITY_FD is ", descriptor,
                          ", which is no page that a launcher made; unset it"));
  page_ = map_page(descriptor);
  ::close(descriptor);
  publish(*page_, 1, {});
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
  change(*page_, [&](StateOnPage& next) { next.phase = static_cast<uint64_t>(phase); });
}

void RankActivity::set_step(int64_t step) {
  change(*page_, [&](StateOnPage& next) { next.step = step; });
}

void RankActivity::set_layer(int64_t layer, PassDirection direction) {
  change(*page_, [&](StateOnPage& next) {
    next.layer = layer;
    next.direction = static_cast<uint64_t>(direction);
  });
}

void RankActivity::begin_wait(std::string_view action, std::string_view group) {
  change(*page_, [&](StateOnPage& next) {
    next.action = {};
    size_t size = 0;
    const auto add = [&](std::string_view more) {
      size += more.copy(next.action.data() + size, next.action.size() - 1 - size);
    };
    add(action);
    if (!group.empty()) {
      add(" of group '");
      add(group);
      add("'");
    }
    next.waiting = 1;
  });
}

void RankActivity::resume_wait() {
  change(*page_, [&](StateOnPage& next) {
    if (next.action.front() == '\0')
      std::string_view("the work of its device").copy(next.action.data(), next.action.size() - 1);
    next.waiting = 1;
  });
}

void RankActivity::end_wait() {
  change(*page_, [&](StateOnPage& next) { next.waiting = 0; });
}

RankActivityState RankActivity::state() const {
  return read_state(*page_);
}

ActivityReader::ActivityReader()
    : descriptor_(::memfd_create("trireme-rank-activity", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  // If a rank could shorten the page, SIGBUS would end the launcher.
  if (!descriptor_.is_open() || ::ftruncate(descriptor(), kActivityPage_bytes) != 0 ||
      ::fcntl(descriptor(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw ConfigError(cat("cannot make a page of shared memory for a rank: ", std::strerror(errno)));
  page_ = map_page(descriptor());
}

std::optional<RankActivityState> ActivityReader::read() const {
  if (page_->magic.load(std::memory_order_acquire) != kActivityMagic) return std::nullopt;
  return read_state(*page_);
}

}  // namespace trireme
