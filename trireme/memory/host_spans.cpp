#include "trireme/memory/host_spans.h"

#include <exception>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

HostSpans::HostSpans(int64_t layers, at::Device device, std::shared_ptr<PinnedPool> pool,
                     std::unique_ptr<CopyStream> copies, std::unique_ptr<SpanStorage> behind)
    : device_(device),
      pool_(std::move(pool)),
      copies_(std::move(copies)),
      places_(static_cast<size_t>(layers)),
      behind_(std::move(behind)) {}

HostSpans::~HostSpans() {
  try {
    for (const Place& place : places_) copies_->compute_waits(place.copied);
  } catch (const std::exception&) {
    // The device is lost. The user should see the error that reported it.
  }
}

void HostSpans::copy(Place& place, const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  // Queued work of the computation's stream may still use the device's memory.
  copies_->wait_for_compute();
  for (size_t i = 0; i < to.size(); ++i) copies_->copy(to[i], from[i]);
  place.copied = copies_->mark();
  for (const at::Tensor& host : place.host) PinnedPool::in_use_until(host, place.copied);
}

void HostSpans::store(int64_t layer, const std::vector<at::Tensor>& spans) {
  Place& place = this->place(layer);
  TRIREME_ASSERT(place.host.empty() && !place.behind, "layer ", layer, " was stored twice");
  std::vector<at::Tensor> host;
  host.reserve(spans.size());
  for (const at::Tensor& span : spans) host.push_back(pool_->take(span.numel()));
  place.host = std::move(host);
  copy(place, place.host, spans);
  place.device = spans;
  place.storing = true;
}

void HostSpans::stored(int64_t layer) {
  Place& place = this->place(layer);
  if (!place.storing) return;
  // Device memory is reused in the order of the computation's stream. So that stream waits, not this thread.
  copies_->compute_waits(place.copied);
  place.device.clear();
  place.storing = false;
  if (behind_ == nullptr) return;
  CopyStream::host_waits(place.copied);
  // Only one layer at a time is stored from the host's memory.
  if (last_behind_) behind_->stored(*std::exchange(last_behind_, std::nullopt));
  behind_->store(layer, place.host);
  place.behind = true;
  place.host.clear();
  last_behind_ = layer;
}

bool HostSpans::storing(int64_t layer) const {
  return places_.at(static_cast<size_t>(layer)).storing;
}

void HostSpans::bring_back(Place& place) {
  std::vector<at::Tensor> device;
  device.reserve(place.host.size());
  for (const at::Tensor& host : place.host)
    device.push_back(at::empty({host.numel()}, at::TensorOptions().dtype(at::kByte).device(device_)));
  place.device = std::move(device);
  copy(place, place.device, place.host);
}

void HostSpans::fetch(int64_t layer) {
  Place& place = this->place(layer);
  stored(layer);
  if (place.behind) {
    if (last_behind_ == layer) last_behind_.reset();
    behind_->fetch(layer);
    pass_on();
    coming_ = layer;
    just_begun_ = true;
    return;
  }
  TRIREME_ASSERT(place.device.empty(), "layer ", layer, " is fetched twice");
  bring_back(place);
}

void HostSpans::pass_on() {
  if (!coming_) return;
  const int64_t layer = *std::exchange(coming_, std::nullopt);
  Place& place = this->place(layer);
  place.host = behind_->fetched(layer);
  place.behind = false;
  bring_back(place);
}

std::vector<at::Tensor> HostSpans::fetched(int64_t layer) {
  Place& place = this->place(layer);
  if (!std::exchange(just_begun_, false) || place.behind) pass_on();
  copies_->compute_waits(place.copied);
  place.host.clear();
  return std::exchange(place.device, {});
}

}  // namespace trireme
