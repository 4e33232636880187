#include "trireme/train/memory_watch.h"

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/device/host_memory_limit.h"
#include "trireme/device/memory_budget.h"
#include "trireme/device/peak_memory.h"
#include "trireme/memory/resident_layers.h"
#include "trireme/plan/first_run.h"

namespace trireme {

int64_t memory_room_bytes(const EngineOptions& engine, const RankIdentity& identity) {
  if (!engine.device.is_cpu()) return device_memory_bytes(engine.device);
  return host_memory_of_rank_bytes(engine.host_memory_limit_bytes, identity.local_size);
}

double allowed_memory_share(const Engine& engine) {
  const std::optional<RecomputeChoice> choice = engine.recompute_choice();
  const std::optional<FitOfRanks> fit = engine.memory_fit();
  const bool more_stays = fit && fit->most_resident_layers > ResidentLayers{}.resident_layers;
  return more_stays || (choice && choice->fits() && choice->rung > 0) ? kPlannedMemoryShare
                                                                      : kFirstRunMemoryShare;
}

MemoryWatch::MemoryWatch(at::Device device, int64_t room_bytes, Agreement& agreement)
    : device_(device), agreement_(agreement), room_bytes_(agreement.gather_one(room_bytes)) {}

std::vector<int64_t> MemoryWatch::look() {
  return agreement_.gather_one(peak_memory_bytes(device_));
}

std::string MemoryWatch::warning(const std::vector<int64_t>& peak_bytes, double allowed_share) {
  const auto share_of = [&](size_t rank) {
    return room_bytes_[rank] > 0
               ? static_cast<double>(peak_bytes[rank]) / static_cast<double>(room_bytes_[rank])
               : 0;
  };
  size_t fullest = 0;
  for (size_t rank = 0; rank < peak_bytes.size(); ++rank)
    if (share_of(rank) > share_of(fullest)) fullest = rank;
  if (warned_ || share_of(fullest) <= allowed_share) return "";
  warned_ = true;
  return cat("warning: rank ", fullest, " has used ", format_bytes(peak_bytes[fullest]), ", ",
             format_percent(share_of(fullest)), " of the ", format_bytes(room_bytes_[fullest]),
             device_.is_cpu() ? " of host memory that are its share" : " of its GPU", "; above ",
             format_percent(allowed_share, 0),
             " a longer step or fragments may end the run. --memory_report says what it is for");
}

}  // namespace trireme
