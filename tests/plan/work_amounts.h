// Sums over what a step's work is counted as.
#pragma once

#include <vector>

#include "trireme/plan/step_work.h"

namespace trireme::testing {

inline double amount_of(const std::vector<WorkItem>& items, WorkKind kind) {
  double sum = 0;
  for (const WorkItem& item : items) sum += item.kind == kind ? item.amount : 0;
  return sum;
}
inline double amount_of(const PlannedStep& step, WorkKind kind) {
  return amount_of(step_work(step).items, kind);
}
inline double products_of(const PlannedStep& step) {
  return amount_of(step, WorkKind::matmul) + amount_of(step, WorkKind::weight_gradient);
}
inline double sent_bytes(const PlannedStep& step, TrafficKind kind) {
  for (const TrafficItem& item : step_work(step).traffic)
    if (item.kind == kind) return item.bytes;
  return 0;
}

}  // namespace trireme::testing
