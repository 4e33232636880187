// Keeps spans of a GPU in pinned host memory, copied on a separate stream. With `behind` (disk), the spans go
// on from there to `behind`.
//
//   store    device -> pinned          fetch    pinned -> device, or with `behind` disk -> pinned
//   stored   (pinned -> disk)          fetched
//
// With `behind`, fetching the next layer starts this layer's copy to the device. So two layers must be
// fetched ahead: then both the disk read and the copy run beside the computation.
#include <exception>
#include <optional>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/memory/span_storage.h"

namespace trireme {
namespace {

class HostSpans final : public SpanStorage {
 public:
  HostSpans(int64_t layers, at::Device device, std::shared_ptr<PinnedPool> pool,
            std::unique_ptr<CopyStream> copies, std::unique_ptr<SpanStorage> behind)
      : device_(device),
        pool_(std::move(pool)),
        copies_(std::move(copies)),
        slots_(static_cast<size_t>(layers)),
        behind_(std::move(behind)) {}
  ~HostSpans() override {
    try {
      for (const Slot& slot : slots_) copies_->compute_waits(slot.copied);
    } catch (const std::exception&) {
      // The device is lost. The user should see the error that reported it.
    }
  }

  void store(int64_t layer, const std::vector<at::Tensor>& spans) override {
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
  void stored(int64_t layer) override {
    Slot& slot = this->slot(layer);
    if (!slot.storing) return;
    // Device memory is reused in the order of the computation's stream. So that stream waits, not this
    // thread.
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
  void fetch(int64_t layer) override {
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
  std::vector<at::Tensor> fetched(int64_t layer) override {
    Slot& slot = this->slot(layer);
    if (!std::exchange(just_begun_, false) || slot.behind) pass_on();
    copies_->compute_waits(slot.copied);
    slot.host.clear();
    return std::exchange(slot.device, {});
  }

 private:
  struct Slot {
    std::vector<at::Tensor> device;  // given to store, or being fetched
    std::vector<at::Tensor> host;
    CopyStream::Mark copied;
    bool storing = false;
    bool behind = false;  // the spans lie in behind_
  };
  Slot& slot(int64_t layer) { return slots_.at(static_cast<size_t>(layer)); }

  void copy(Slot& slot, const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
    // Queued work of the computation's stream may still use the device's memory.
    copies_->wait_for_compute();
    for (size_t i = 0; i < to.size(); ++i) copies_->copy(to[i], from[i]);
    slot.copied = copies_->mark();
    for (const at::Tensor& host : slot.host) PinnedPool::in_use_until(host, slot.copied);
  }
  void bring_back(Slot& slot) {
    std::vector<at::Tensor> device;
    device.reserve(slot.host.size());
    for (const at::Tensor& host : slot.host)
      device.push_back(at::empty({host.numel()}, at::TensorOptions().dtype(at::kByte).device(device_)));
    slot.device = std::move(device);
    copy(slot, slot.device, slot.host);
  }
  // With `behind`: waits until the layer being fetched is on the host, then starts its copy to the device.
  void pass_on() {
    if (!coming_) return;
    const int64_t layer = *std::exchange(coming_, std::nullopt);
    Slot& slot = this->slot(layer);
    slot.host = behind_->fetched(layer);
    slot.behind = false;
    bring_back(slot);
  }

  at::Device device_;
  std::shared_ptr<PinnedPool> pool_;
  std::unique_ptr<CopyStream> copies_;
  std::vector<Slot> slots_;
  std::unique_ptr<SpanStorage> behind_;
  std::optional<int64_t> last_behind_;  // the layer that behind_ may still store from host memory
  std::optional<int64_t> coming_;       // the layer being fetched from behind_
  bool just_begun_ = false;             // coming_ was set since the last fetched()
};

}  // namespace

std::unique_ptr<SpanStorage> make_host_spans(int64_t layers, at::Device device,
                                             std::shared_ptr<PinnedPool> pool,
                                             std::unique_ptr<CopyStream> copies,
                                             std::unique_ptr<SpanStorage> behind) {
  return std::make_unique<HostSpans>(layers, device, std::move(pool), std::move(copies), std::move(behind));
}

}  // namespace trireme
