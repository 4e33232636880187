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
      slots_(static_cast<size_t>(layers)),
      behind_(std::move(behind)) {}

HostSpans::~HostSpans() {
  try {
    for (const Slot& slot : slots_) copies_->compute_waits(slot.copied);
  } catch (const std::exception&) {
    // The device is lost. The user should see the error that reported it.
  }
}

void HostSpans::copy(Slot& slot, const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  // Queued work of the computation's stream may still use the device's memory.
  copies_->wait_for_compute();
  for (size_t i = 0; i < to.size(); ++i) copies_->copy(to[i], from[i]);
  slot.copied = copies_->mark();
  for (const at::Tensor& host : slot.host) PinnedPool::in_use_until(host, slot.copied);
}

void HostSpans::store(int64_t layer, const std::vector<at::Tensor>& spans) {
  Slot& slot = this->slot(layer);
  TRIREME_ASSERT(slot.host.empty() && !slot.behind, "layer ", layer, " was stored twice");
  std::vector<at::Tensor> host;
  host.reserve(spans.size());
  for (const at::Tensor& span : spans) host.push_back(pool_->take(span.numel()));
  slot.host = std::move(host);
  copy(slot, slot.host, spans);
  slot.device = spans;
  slot.storing = true;
}

void HostSpans::stored(int64_t layer) {
  Slot& slot = this->slot(layer);
  if (!slot.storing) return;
  // Device memory is reused in the order of the computation's stream. So that stream waits, not this thread.
  copies_->compute_waits(slot.copied);
  slot.device.clear();
  slot.storing = false;
  if (behind_ == nullptr) return;
  CopyStream::host_waits(slot.copied);
  // Only one layer at a time is stored from the host's memory.
  if (last_behind_) behind_->stored(*std::exchange(last_behind_, std::nullopt));
  behind_->store(layer, slot.host);
  slot.behind = true;
  slot.host.clear();
  last_behind_ = layer;
}

bool HostSpans::storing(int64_t layer) const {
  return slots_.at(static_cast<size_t>(layer)).storing;
}

void HostSpans::bring_back(Slot& slot) {
  std::vector<at::Tensor> device;
  device.reserve(slot.host.size());
  for (const at::Tensor& host : slot.host)
    device.push_back(at::empty({host.numel()}, at::TensorOptions().dtype(at::kByte).device(device_)));
  slot.device = std::move(device);
  copy(slot, slot.device, slot.host);
}

void HostSpans::fetch(int64_t layer) {
  Slot& slot = this->slot(layer);
  stored(layer);
  if (slot.behind) {
    if (last_behind_ == layer) last_behind_.reset();
    behind_->fetch(layer);
    pass_on();
    coming_ = layer;
    just_begun_ = true;
    return;
  }
  TRIREME_ASSERT(slot.device.empty(), "layer ", layer, " is fetched twice");
  bring_back(slot);
}

void HostSpans::pass_on() {
  if (!coming_) return;
  const int64_t layer = *std::exchange(coming_, std::nullopt);
  Slot& slot = this->slot(layer);
  slot.host = behind_->fetched(layer);
  slot.behind = false;
  bring_back(slot);
}

std::vector<at::Tensor> HostSpans::fetched(int64_t layer) {
  Slot& slot = this->slot(layer);
  if (!std::exchange(just_begun_, false) || slot.behind) pass_on();
  copies_->compute_waits(slot.copied);
  slot.host.clear();
  return std::exchange(slot.device, {});
}

}  // namespace trireme
