// Products of fp32 in the plain library, whatever the processor: they are operators that a test can watch,
// and have no workspace.
#pragma once

#include <ATen/Context.h>

namespace trireme::testing {

class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(before_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledMkldnn();
};

}  // namespace trireme::testing
