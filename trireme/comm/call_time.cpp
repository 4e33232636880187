#include "trireme/comm/call_time.h"

#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "trireme/base/clock.h"

namespace trireme {
namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

c10::Event mark(at::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // one that can be timed
  event.record(current_stream(device));
  return event;
}

}  // namespace

void CallSeconds::add(CallTime time) {
  seconds_ += time.host_seconds;
  for (StreamSpan& span : time.spans) spans_.push_back(std::move(span));
  add_passed(/*all=*/false);
}

void CallSeconds::add_passed(bool all) const {
  for (; !spans_.empty(); spans_.pop_front()) {
    const StreamSpan& span = spans_.front();
    if (all)
      span.end.synchronize();
    else if (!span.end.query())
      return;
    seconds_ += span.begin.elapsedTime(span.end) / 1000;
  }
}

double CallSeconds::total() const {
  add_passed(/*all=*/true);
  return seconds_;
}

void wait_for_stream(at::Device device) {
  if (!device.is_cpu()) current_stream(device).synchronize();
}

void CallWatch::resume() {
  if (device_.is_cpu())
    begin_seconds_ = now_seconds();
  else
    begin_.emplace(mark(device_));
}

void CallWatch::pause() {
  if (device_.is_cpu())
    time_.host_seconds += now_seconds() - begin_seconds_;
  else
    time_.spans.push_back({std::move(*begin_), mark(device_)});
}

}  // namespace trireme
