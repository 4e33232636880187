// Keeps spans of a GPU in pinned host memory, copied on a separate stream. With `behind` (disk), the spans go
// on from there to `behind`.
//
//   store    device -> pinned          fetch    pinned -> device, or with `behind` disk -> pinned
//   stored   (pinned -> disk)          fetched
//
// With `behind`, fetching the next layer starts this layer's copy to the device. So two layers must be
// fetched ahead: then both the disk read and the copy run beside the computation.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trireme/device/pinned_pool.h"
#include "trireme/memory/copy_stream.h"
#include "trireme/memory/span_storage.h"

namespace trireme {

class HostSpans final : public SpanStorage {
 public:
  // Spans lie on `device`; `copies` copies from and to it. `behind` must return pinned memory of a pool too,
  // best of this pool, which then serves both directions.
  HostSpans(int64_t layers, at::Device device, std::shared_ptr<PinnedPool> pool,
            std::unique_ptr<CopyStream> copies, std::unique_ptr<SpanStorage> behind = nullptr);
  ~HostSpans() override;

  // ConfigError when there is no memory for the spans, see PinnedPool.
  void store(int64_t layer, const std::vector<at::Tensor>& spans) override;
  void stored(int64_t layer) override;
  void fetch(int64_t layer) override;
  std::vector<at::Tensor> fetched(int64_t layer) override;
  bool storing(int64_t layer) const override;

 private:
  struct Slot {
    std::vector<at::Tensor> device;  // given to store, or being fetched
    std::vector<at::Tensor> host;
    CopyStream::Mark copied;
    bool storing = false;
    bool behind = false;  // the spans lie in behind_
  };
  Slot& slot(int64_t layer) { return slots_.at(static_cast<size_t>(layer)); }
  void copy(Slot& slot, const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);
  void bring_back(Slot& slot);
  // With `behind`: waits until the layer being fetched is on the host, then starts its copy to the device.
  void pass_on();

  at::Device device_;
  std::shared_ptr<PinnedPool> pool_;
  std::unique_ptr<CopyStream> copies_;
  std::vector<Slot> slots_;
  std::unique_ptr<SpanStorage> behind_;
  std::optional<int64_t> last_behind_;  // the layer that behind_ may still store from host memory
  std::optional<int64_t> coming_;       // the layer being fetched from behind_
  bool just_begun_ = false;             // coming_ was set since the last fetched()
};

}  // namespace trireme
