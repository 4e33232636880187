// Accumulates the gradients of a step in fp32, unit by unit, and sums them over ranks. A unit is opened
// before its backward and closed when its gradient of this micro-batch is whole.
//
//   ZeRO stage             held between micro-batches         summed over ranks
//   none                   every unit, whole                  at the end of the step, on every rank
//   optimizer              every unit, whole                  at the end; each rank its share
//   gradients, parameters  this rank's share of every unit    at each close; each rank its share
//
// On a GPU the first two sum at the closes of the step's last micro-batch.
//
// With `on_summed` (--update_in_backward), close hands a unit's sum over and does not keep it. So the
// gradients of all units never exist together.
//
// Beside a GPU whose optimizer is offloaded, sums made at each close go to the host's memory
// (offloaded_sums.h). Whole gradients stay on the device; a unit is copied when it is stepped.
//
// Another thread may read summed(u) while the passes of the next step run already, until they open u: a
// unit's values are forgotten no sooner.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/collectives.h"
#include "trireme/device/pinned_pool.h"
#include "trireme/kernels/sum_state.h"
#include "trireme/memory/copy_stream.h"
#include "trireme/shard/flat_unit.h"

namespace trireme {

struct OpenGradient {
  at::Tensor flat;
  // Undefined: the caller writes all values before it opens the unit again or closes it.
  SumState state = SumState::undefined;
};

class GradientStore {
 public:
  virtual ~GradientStore() = default;
  GradientStore& operator=(GradientStore&&) = delete;
  // The next micro-batch is the step's last: its closes are the units' last ones.
  virtual void begin_last_micro_batch() = 0;
  // The unit's flat fp32 gradient, the same one until its close. It is undefined at the first open after
  // clear and, where sums are made at each close, after each close.
  virtual OpenGradient open(int unit) = 0;
  // Collective where sums are made at a close.
  virtual void close(int unit) = 0;
  // Ends the micro-batches: sums over ranks the gradients that close did not sum. Units not opened since
  // clear() become zero. No other thread may read them after this call. Collective.
  virtual void finish() = 0;
  // After finish: the summed gradient of this rank's share of the unit (of the whole unit where it is
  // replicated). It lies where the optimizer steps: on the device or, where the optimizer is offloaded, on
  // the host. The calling thread waits for the copy to the host.
  virtual at::Tensor summed(int unit) = 0;
  // After finish: the sum of squares of summed(unit), [] fp64 on the run's device. No thread waits.
  virtual at::Tensor squares(int unit) = 0;
  // After finish: the whole summed gradient. Collective.
  virtual at::Tensor whole(int unit) = 0;
  // True where each rank has the sum of its share alone.
  virtual bool sharded() const = 0;
  // After finish: multiplies all gradients that are held.
  virtual void multiply(double factor) = 0;
  // Begins the next step. Each unit's values are forgotten at its first open, or at finish.
  virtual void clear() = 0;
};

// When a sum over ranks is waited for. On a GPU it goes beside the next unit's backward: it is begun at a
// close, and waited for at the next close, or at finish. Until then that unit's whole gradient stays. Else
// sums of whole gradients are made at finish, and others at their close.
enum class SumsFinish { at_close, one_unit_later };

struct GradientSettings {
  at::Device device = at::kCPU;
  at::ScalarType reduce_dtype = at::kFloat;  // of the gradients that are sent; their sum is fp32
  SumsFinish sums = SumsFinish::at_close;    // of sums that are kept; those handed over finish at close
  // Set beside a GPU whose optimizer is offloaded, else null.
  std::shared_ptr<CopyStream> copies = nullptr;
  std::shared_ptr<PinnedPool> pinned = nullptr;
};
// `gradient` is on the run's device. The receiver may keep it or overwrite it.
using OnSummed = std::function<void(int unit, at::Tensor gradient)>;

// ZeRO none and optimizer (`shard`).
std::unique_ptr<GradientStore> make_whole_gradients(const std::vector<FlatUnit>& units, Group& group,
                                                    bool shard, const GradientSettings& settings);
// ZeRO gradients and parameters. With `on_summed` also the lower stages (`shard` false: whole units).
std::unique_ptr<GradientStore> make_gradients_summed_at_close(const std::vector<FlatUnit>& units,
                                                              Group& group, bool shard,
                                                              const GradientSettings& settings,
                                                              OnSummed on_summed = nullptr);

// Sums a unit's flat fp32 gradient over ranks in place: all of it, or (`shard`) this rank's share alone; the
// rest is then no sum. Collective.
void sum_gradient(Group& group, at::Tensor& gradient, bool shard, at::ScalarType reduce_dtype);

// The sum of this rank's share, begun; in memory of its own unless `output` has some. `gradient` must not
// change before wait(), which the caller counts as communication. Collective.
PendingRows begin_sum_of_share(Group& group, const at::Tensor& gradient, at::ScalarType reduce_dtype,
                               at::Tensor output = {});
// The same in the rank's rows of `gradient`, the rest of which is then no sum.
PendingRows begin_sum_in_place(Group& group, at::Tensor& gradient, at::ScalarType reduce_dtype);

// The begun sum of a unit's gradient.
struct UnitSum {
  UnitSum(int unit, PendingRows sum) : unit(unit), sum(std::move(sum)) {}
  int unit;
  PendingRows sum;
};

// The sum of squares of a flat fp32 tensor, added up in fp64: [] on its device.
at::Tensor sum_of_squares(const at::Tensor& values);

// sqrt of the sum of squares over the units, in fp64. Sums over the ranks of `group` too where gradients are
// sharded (then collective).
double gradient_norm(GradientStore& gradients, int units, Group& group);

}  // namespace trireme
