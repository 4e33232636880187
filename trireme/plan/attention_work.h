// The work of attention in a layer of one kind, or of the DeltaNet in its place: from q, k and v as their
// projection gives them to what the out projection reads, with the exchanges between the ranks of a sample.
#pragma once

#include "trireme/forecast/recompute_plan.h"
#include "trireme/plan/kind_work.h"
#include "trireme/plan/work_counter.h"

namespace trireme {

class AttentionWork {
 public:
  AttentionWork(WorkCounter& count, const KindWork& kind) : count_(count), in_(count.inputs), kind_(kind) {}

  // What the projection gives, to where it is mixed.
  void take_qkv();
  // What one product gives, into what is mixed and what gates it; or the way back.
  void part_gates();
  void forward();
  void gate();
  // Of gate() and forward(): d(out projection's input) -> dq, dk and dv of this rank's tokens.
  void backward(const SavedSlots& slots);

 private:
  // Of heads; a DeltaNet's with the ranks of a ring too.
  bool exchanges() const { return (kind_.delta_net ? in_.ulysses * in_.ring : in_.ulysses) > 1; }
  // With head chunks attention itself sends q, k and v, in backward again: they are kept by tokens.
  bool chunked() const { return in_.head_chunks > 1 && !kind_.delta_net; }
  TrafficKind exchange() const { return kind_.delta_net ? TrafficKind::columns : TrafficKind::ulysses; }
  double messages() const { return chunked() ? in_.head_chunks : 1; }
  double ring_calls() const { return static_cast<double>(in_.gathers_keys ? 1 : in_.ring - 1); }

  void copy_shared_keys();
  void send_qkv();
  void mix_columns(double passes);
  void attend(WorkKind kind, double flops_a_pair_and_value);
  double hidden_pairs_of_tiles(double document) const;
  void attend_by_tiles(WorkKind kind, double flops_a_pair, double pairs);
  void add_up_rounds(double width, double bytes);

  WorkCounter& count_;
  const ForecastInputs& in_;
  const KindWork& kind_;
};

}  // namespace trireme
