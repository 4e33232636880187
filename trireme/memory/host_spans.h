// Spans of a GPU's memory in pinned memory of the host, copied on a stream of their own, and from there, with
// `behind`, on to where that puts them (disk).
//
//   store    device -> pinned          fetch    pinned -> device, or with `behind` disk -> pinned
//   stored   (pinned -> disk)          fetched
//
// With `behind`, a layer goes on to the device when the next one is fetched: two layers are to be fetched ahead, so that
// both halves of the way go on beside the computation.
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
  // Spans lie on `device`, that `copies` copies from and to. What `behind` brings back is pinned memory of a pool as
  // well, best of this one: it then serves both ways.
  HostSpans(int64_t layers, at::Device device, std::shared_ptr<PinnedPool> pool,
            std::unique_ptr<CopyStream> copies, std::unique_ptr<SpanStorage> behind = nullptr);
  ~HostSpans() override;

  // ConfigError when there is no memory for them, see PinnedPool.
  void store(int64_t layer, const std::vector<at::Tensor>& spans) override;
  void stored(int64_t layer) override;
  void fetch(int64_t layer) override;
  std::vector<at::Tensor> fetched(int64_t layer) override;
  bool storing(int64_t layer) const override;

 private:
  struct Place {
    std::vector<at::Tensor> device;  // given to store, or being fetched
    std::vector<at::Tensor> host;
    CopyStream::Mark copied;
    bool storing = false;
    bool behind = false;  // they lie there
  };
  Place& place(int64_t layer) { return places_.at(static_cast<size_t>(layer)); }
  void copy(Place& place, const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from);
  void bring_back(Place& place);
  // With `behind`: this thread waits for the layer that is on its way to the host, which goes on to the device.
  void pass_on();

  at::Device device_;
  std::shared_ptr<PinnedPool> pool_;
  std::unique_ptr<CopyStream> copies_;
  std::vector<Place> places_;
  std::unique_ptr<SpanStorage> behind_;
  std::optional<int64_t> last_behind_;  // may still be using the host's memory
  std::optional<int64_t> coming_;       // on its way from behind
  bool just_begun_ = false;             // that is, since the last fetched()
};

}  // namespace trireme
