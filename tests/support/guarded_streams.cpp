#include "tests/support/guarded_streams.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "trireme/base/error.h"

#include "tests/support/guarded_device.h"

namespace trireme::testing {
namespace {

using StreamId = c10::StreamId;
constexpr StreamId kDefaultStream = 0;

// What a recorded event stands for: a point in a stream's work.
struct Point {
  StreamId stream = kDefaultStream;
  std::atomic<bool> reached = false;
  int64_t second = 0;  // by the device's clock, once it is reached
};
using Event = std::shared_ptr<Point>;

class Streams {
 public:
  StreamId make() {
    const std::lock_guard lock(mutex_);
    return ++last_;
  }
  void queue(StreamId stream, std::function<void()> work) {
    if (stream == kDefaultStream) return work();
    const std::lock_guard lock(mutex_);
    waiting_[stream].push_back(std::move(work));
  }
  // One piece of work; false where there is none.
  bool advance(StreamId stream) {
    const std::lock_guard lock(mutex_);
    auto& works = waiting_[stream];
    if (works.empty()) return false;
    const auto work = std::move(works.front());
    works.pop_front();
    work();
    return true;
  }
  void finish(StreamId stream) {
    while (advance(stream)) {
    }
  }
  void finish_all() {
    for (StreamId stream = 1; stream <= last_; ++stream) finish(stream);
  }
  void reach(const Point& point) {
    while (!point.reached)
      // Another thread may have done the work meanwhile.
      if (!advance(point.stream) && !point.reached)
        throw InternalError("waited for an event that nothing leads to");
  }

 private:
  std::recursive_mutex mutex_;  // work may wait for other work
  std::atomic<StreamId> last_ = kDefaultStream;
  std::map<StreamId, std::deque<std::function<void()>>> waiting_;
};

Streams& streams() {
  static auto* const all = new Streams;
  return *all;
}

thread_local StreamId current_stream = kDefaultStream;
std::atomic<bool> device_failed = false;

// The device's clock: a second passes with each mark that the work of this thread comes to, and at no other
// time.
thread_local int64_t second_now = 0;

class GuardedDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return guarded_device().type(); }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return guarded_device(); }
  c10::Device getDevice() const override { return guarded_device(); }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device /*device*/) const override { return stream_of(current_stream); }
  c10::Stream getDefaultStream(c10::Device /*device*/) const override { return stream_of(kDefaultStream); }
  c10::Stream getNewStream(c10::Device /*device*/, int /*priority*/) const override {
    return stream_of(streams().make());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*high_priority*/) const override {
    return stream_of(streams().make());
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return stream_of(std::exchange(current_stream, stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    constexpr int32_t kUncorrectable = 214;  // cudaErrorECCUncorrectable
    if (device_failed)
      throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, kUncorrectable,
                                  "CUDA error: uncorrectable ECC error encountered\n");
    return !streams().advance(stream.id());
  }
  void synchronizeStream(const c10::Stream& stream) const override { streams().finish(stream.id()); }
  void synchronizeDevice(c10::DeviceIndex /*device*/) const override { streams().finish_all(); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;
    auto point = std::make_shared<Point>();
    point->stream = stream.id();
    streams().queue(stream.id(), [point] {
      point->second = ++second_now;
      point->reached = true;
    });
    *static_cast<Event*>(*event) = point;
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    streams().queue(stream.id(), [point = *static_cast<Event*>(event)] { streams().reach(*point); });
  }
  // Looking helps the work along, so that who asks again and again is answered at last.
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const Point& point = **static_cast<Event*>(event);
    if (point.reached) return true;
    streams().advance(point.stream);
    return false;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) streams().reach(**static_cast<Event*>(event));
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex /*device*/) const override {
    const auto second_of = [](void* event) { return (*static_cast<Event*>(event))->second; };
    return 1000.0 * static_cast<double>(second_of(to) - second_of(from));
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }

 private:
  static c10::Stream stream_of(StreamId id) { return c10::Stream(c10::Stream::UNSAFE, guarded_device(), id); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardedDeviceGuard);

struct GuardedDeviceHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
};

}  // namespace

void fail_guarded_device(bool failed) {
  static GuardedDeviceHooks hooks;
  if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(&hooks);
  device_failed = failed;
}

void queue_on_current_stream(std::function<void()> work) {
  streams().queue(current_stream, std::move(work));
}

void finish_current_stream() {
  streams().finish(current_stream);
}

}  // namespace trireme::testing
