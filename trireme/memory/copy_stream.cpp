#include "trireme/memory/copy_stream.h"

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme {
namespace {

class CopiesAtOnce final : public CopyStream {
 public:
  void wait_for_compute() override {}
  void compute_waits(const Mark& /*mark*/) override {}
  void copy(const at::Tensor& to, const at::Tensor& from) override { to.copy_(from); }
  Mark mark() override { return nullptr; }
  void behind_copies(const std::function<void()>& give) override { give(); }
};

class DeviceCopies final : public CopyStream {
 public:
  explicit DeviceCopies(at::Device device)
      : device_(device),
        stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false)) {}

  void wait_for_compute() override {
    c10::Event reached(device_.type());
    reached.record(compute());
    reached.block(stream_);
  }
  void compute_waits(const Mark& mark) override {
    if (mark) static_cast<const EventMark&>(*mark).event.block(compute());
  }
  void copy(const at::Tensor& to, const at::Tensor& from) override {
    const c10::StreamGuard guard(stream_);
    to.copy_(from, /*non_blocking=*/true);
  }
  Mark mark() override {
    auto mark = std::make_shared<EventMark>(device_.type());
    mark->event.record(stream_);
    return mark;
  }
  void behind_copies(const std::function<void()>& give) override {
    const c10::StreamGuard guard(stream_);
    give();
  }

 private:
  struct EventMark final : StreamMark {
    explicit EventMark(c10::DeviceType type) : event(type) {}
    bool reached() const override { return event.query(); }
    void wait() const override { event.synchronize(); }
    c10::Event event;
  };
  c10::Stream compute() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

  at::Device device_;
  c10::Stream stream_;
};

}  // namespace

std::unique_ptr<CopyStream> make_copy_stream(at::Device device) {
  if (device.is_cpu()) return std::make_unique<CopiesAtOnce>();
  return std::make_unique<DeviceCopies>(device);
}

}  // namespace trireme
