#include "trireme/measure/mean_matmul_rate.h"

#include "trireme/comm/agreement.h"
#include "trireme/comm/collectives.h"
#include "trireme/measure/matmul_rate.h"

namespace trireme {

void MeanMatmulRate::measure() {
  barrier(group_);
  seconds_of_one_ += 1 / Agreement(group_, device_).sum(best_matmul_rate(device_, dtype_, seconds_));
  ++count_;
}

double MeanMatmulRate::flops_per_second() const {
  return count_ / seconds_of_one_;
}

}  // namespace trireme
