// The memory formulas beside a GPU, without one: bytes counted on the guarded device (tests/support/guarded_device.h), whose
// operators are those of a GPU. Its attention is the reference kernel, whose workspace is in no formula.
#include <algorithm>

#include <gtest/gtest.h>

#include "trireme/measure/memory_report.h"

#include "tests/engine/memory_cases.h"
#include "tests/support/guarded_device.h"

namespace trireme::guarded_memory_bytes_test {
namespace {

using testing::MemoryCase;

constexpr int64_t kMost_tokens = 520;  // the reference kernel is slow, and is not what is looked at

TEST(MemoryOnGuardedDevice, peaks_of_all_but_attention_are_within_5_percent_of_the_formulas) {
  for (const bool all_in_bf16 : {false, true})
    for (MemoryCase test : testing::memory_cases()) {
      if (test.ranks > (all_in_bf16 ? 2 : 1))
        continue;  // more ranks hold nothing that two do not, and take long
      test.tokens = std::min(test.tokens, kMost_tokens);
      const auto change = test.change;
      test.change = [&](EngineOptions& options) {
        change(options);
        options.device = testing::guarded_device();
        options.attention = AttentionKernel::reference;
        if (!all_in_bf16) return;
        options.precision = Precision::bf16;
        options.bf16_matmul = Bf16Matmul::native;
      };
      for (const auto& [state, forecast, shape] : testing::measure_memory(test, /*threads=*/1)) {
        SCOPED_TRACE(::testing::Message() << test.name << (all_in_bf16 ? ", all in bf16" : "") << "\n"
                                          << memory_report(state, forecast));
        for (const MemoryCategory category : kAllMemoryCategories)
          if (category != MemoryCategory::attention)
            testing::expect_within(0.05, name_of(category), state.peak[category], forecast.peak[category]);
      }
    }
}

}  // namespace
}  // namespace trireme::guarded_memory_bytes_test
