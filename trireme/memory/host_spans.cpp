#include "trireme/memory/host_spans.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {

HostSpans::HostSpans(int64_t layers, at::Device device, std::unique_ptr<SpanStorage> behind)
    : device_(device), copies_(device), places_(static_cast<size_t>(layers)), behind_(std::move(behind)) {}

at::Tensor HostSpans::empty_on_device(const at::Tensor& host) const {
  return at::empty({host.numel()}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void HostSpans::store(int64_t layer, const std::vector<at::Tensor>& spans) {
  Place& place = this->place(layer);
  TRIREME_ASSERT(place.host.empty() && !place.behind, "layer ", layer, " was stored twice");
  std::vector<at::Tensor> host;
  host.reserve(spans.size());
  for (const at::Tensor& span : spans)
    host.push_back(
        at::empty({span.numel()}, at::TensorOptions().dtype(at::kByte).pinned_memory(!device_.is_cpu())));
  copies_.wait_for_compute();
  for (size_t i = 0; i < spans.size(); ++i) copies_.copy(host[i], spans[i]);
  place.copied = copies_.mark();
  place.host = std::move(host);
  place.device = spans;
  place.storing = true;
}

void HostSpans::stored(int64_t layer) {
  Place& place = this->place(layer);
  if (!place.storing) return;
  // Their memory may be given out again in the order of the computation's stream: that waits, not this thread.
  copies_.compute_waits(place.copied);
  place.device.clear();
  place.storing = false;
  if (behind_ == nullptr) return;
  CopyStream::host_waits(place.copied);
  // One layer at a time on its way from the host's memory.
  if (last_behind_) behind_->stored(*std::exchange(last_behind_, std::nullopt));
  behind_->store(layer, place.host);
  place.behind = true;
  place.host.clear();
  last_behind_ = layer;
}

bool HostSpans::storing(int64_t layer) const {
  return places_.at(static_cast<size_t>(layer)).storing;
}

void HostSpans::fetch(int64_t layer) {
  Place& place = this->place(layer);
  stored(layer);
  if (place.behind) {
    if (last_behind_ == layer) last_behind_.reset();
    behind_->fetch(layer);
    return;
  }
  TRIREME_ASSERT(place.device.empty(), "layer ", layer, " is fetched twice");
  for (const at::Tensor& host : place.host) place.device.push_back(empty_on_device(host));
  // That memory may be in use by work that the computation's stream has not come to yet.
  copies_.wait_for_compute();
  for (size_t i = 0; i < place.host.size(); ++i) copies_.copy(place.device[i], place.host[i]);
  place.copied = copies_.mark();
}

std::vector<at::Tensor> HostSpans::fetched(int64_t layer) {
  Place& place = this->place(layer);
  if (place.behind) {
    // The disk is the slow part of this way, and was read meanwhile; the copy waits in the computation's stream.
    place.host = behind_->fetched(layer);
    place.behind = false;
    for (const at::Tensor& host : place.host)
      place.device.push_back(empty_on_device(host).copy_(host, /*non_blocking=*/true));
  } else {
    copies_.compute_waits(place.copied);
  }
  place.host.clear();
  return std::exchange(place.device, {});
}

}  // namespace trireme
