// What a step gives before its update, and that another gives the same.
#pragma once

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "trireme/engine/engine.h"

#include "tests/support/relative_error.h"

namespace trireme::testing {

struct Outcome {
  StepResult step;
  std::map<std::string, at::Tensor> gradients;
};

inline void expect_same(const Outcome& a, const Outcome& b, double tolerance, const std::string& what) {
  EXPECT_NEAR(a.step.loss / b.step.loss, 1, tolerance) << what;
  EXPECT_NEAR(a.step.gradient_norm / b.step.gradient_norm, 1, tolerance) << what;
  EXPECT_EQ(a.step.target_tokens, b.step.target_tokens) << what;
  for (const auto& [name, gradient] : b.gradients) {
    if (name.ends_with("attention.self.key.bias")) continue;  // zero but for rounding
    if (name.ends_with("layer_scalar"))                       // it stays
      EXPECT_TRUE(at::equal(a.gradients.at(name), at::zeros_like(gradient))) << what << ": " << name;
    else
      EXPECT_LT(relative_error(a.gradients.at(name), gradient), tolerance) << what << ": " << name;
  }
}

}  // namespace trireme::testing
