#include "trireme/train/background_save.h"

#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/device/memory_account.h"
#include "trireme/model/unit_writer.h"
#include "trireme/train/checkpoint_shard.h"

namespace trireme {

void BackgroundSave::start(std::function<void(const std::stop_token&)> work) {
  at_work_ = true;
  worker_ = std::jthread([this, work = std::move(work)](const std::stop_token& stop) {
    try {
      const at::NoGradGuard no_grad;
      work(stop);
    } catch (...) {
      failure_ = std::current_exception();
    }
    at_work_ = false;
  });
}

void BackgroundSave::begin(const CheckpointContents& contents, Engine& engine, int64_t save_total_limit) {
  TRIREME_ASSERT(!pending(), "step ", texts_.step, " is being saved");
  const at::NoGradGuard no_grad;
  units_ = engine.layout().trained();
  states_ = engine.state_names();
  save_part(run_, contents.step, agreement_, rank_ == 0, [&] {
    if (rank_ == 0) begin_checkpoint(run_, contents.step);
    texts_ = checkpoint_texts(contents, engine, ranks_, save_total_limit);
    const MemoryScope scope(engine.memory_account(), MemoryCategory::snapshot);
    for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit)
      for (const std::string& state : states_)
        if (const UnitSpec& spec = units_[static_cast<size_t>(unit)]; writer_of_unit(unit, ranks_) == rank_)
          snapshot_.push_back({&spec, state, at::empty({spec.elements}, at::kFloat)});
  });
  size_t next = 0;
  for_each_state(engine, [&](const UnitSpec&, const std::string&, const at::Tensor& flat) {
    const ActivityWait wait(engine.mesh().all->activity());
    snapshot_[next++].values.copy_(flat);
  });
  began_seconds_ = now_seconds();
  phase_ = Phase::writing;
  start([this](const std::stop_token& stop) { write(stop); });
}

void BackgroundSave::write(const std::stop_token& stop) {
  CheckpointShard shard(run_.temporary(texts_.step) / shard_name(rank_), units_, states_, rank_, ranks_);
  for (UnitState& state : snapshot_) {
    if (!shard.write(*state.unit, state.state, state.values, stop)) return;
    state.values = at::Tensor();
  }
  snapshot_.clear();
  shard_ = shard.finish();
}

std::optional<SavedInBackground> BackgroundSave::look() {
  if (!pending() || agreement_.any(at_work_)) return std::nullopt;
  return go_on();
}

std::optional<SavedInBackground> BackgroundSave::finish() {
  std::optional<SavedInBackground> saved;
  while (pending()) {
    worker_.join();
    saved = go_on();
  }
  return saved;
}

// When no rank's worker is at work.
std::optional<SavedInBackground> BackgroundSave::go_on() {
  const Phase phase = std::exchange(phase_, Phase::none);
  snapshot_.clear();
  save_part(run_, texts_.step, agreement_, rank_ == 0, [&] {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  });
  if (phase == Phase::publishing)
    return SavedInBackground{run_.checkpoint(texts_.step), now_seconds() - began_seconds_};
  const std::vector<ManifestFile> shards = gather_described(shard_, agreement_);
  phase_ = Phase::publishing;
  start([this, shards](const std::stop_token&) {
    if (rank_ == 0) publish_checkpoint(run_, texts_, shards);
  });
  return std::nullopt;
}

}  // namespace trireme
