#include "tests/support/device_under_test.h"
#include "tests/support/guarded_device.h"

namespace trireme::testing {

std::optional<c10::Device> device_under_test() {
  return guarded_device();
}

}  // namespace trireme::testing
