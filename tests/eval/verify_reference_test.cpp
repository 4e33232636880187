#include "trireme/eval/verify_reference.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/safetensors.h"
#include "trireme/base/safetensors_writer.h"
#include "trireme/comm/thread_world.h"

#include "tests/support/error_message.h"
#include "tests/support/source_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tensor_bytes.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using ::testing::HasSubstr;

const fs::path kModel = testing::source_folder() / "tests/parity/fixtures/llama";

VerifyResult verify(int ranks, const fs::path& reference) {
  VerifyResult result;
  std::mutex mutex;
  run_ranks_as_threads(ranks, [&](World& world) {
    EngineOptions options;
    options.ulysses = ranks;
    const VerifyResult of_rank = verify_reference(world, kModel, reference, options, 1e-4);
    const std::lock_guard<std::mutex> lock(mutex);
    result = of_rank;
  });
  return result;
}

// The committed reference, changed: each tensor's bytes pass through `change`, which returns false to leave
// it out.
struct Changed {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
class VerifyReference : public ::testing::Test {
 protected:
  fs::path changed(const std::function<bool(const std::string& name, Changed& tensor)>& change,
                   const std::map<std::string, Changed>& added = {}) {
    const SafetensorsFile file(kModel / "reference.safetensors");
    std::map<std::string, Changed> all = added;
    for (const auto& [name, entry] : file.entries()) {
      Changed tensor{entry.dtype, entry.shape, testing::bytes_of(entry)};
      if (change(name, tensor)) all[name] = tensor;
    }
    std::vector<SafetensorsSpec> specs;
    specs.reserve(all.size());
    for (const auto& [name, tensor] : all) specs.push_back({name, tensor.dtype, tensor.shape});
    fs::path out = folder_.path() / "reference.safetensors";
    SafetensorsWriter writer(out, specs);
    for (const auto& [name, tensor] : all)
      writer.write(name, tensor.bytes.data(), static_cast<int64_t>(tensor.bytes.size()));
    writer.finish();
    return out;
  }
  static std::string refusal(const fs::path& reference) {
    return testing::message_of<DataError>([&] { verify(1, reference); });
  }
  testing::TemporaryFolder folder_;
};

void scale(Changed& tensor, float factor) {
  auto* values = reinterpret_cast<float*>(tensor.bytes.data());
  for (size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i) values[i] *= factor;
}

TEST_F(VerifyReference, passes_on_hugging_faces_own_numbers_at_any_number_of_ranks) {
  for (const int ranks : {1, 2, 3, 4}) {
    const VerifyResult result = verify(ranks, kModel / "reference.safetensors");
    EXPECT_TRUE(result.passed()) << result.table(5);
    EXPECT_GT(result.tensors.size(), 15U);
    EXPECT_GE(result.tensors.front().error, result.tensors.back().error);
  }
}

TEST_F(VerifyReference, one_tensor_that_is_off_fails_and_is_named_first) {
  for (const char* wrong :
       {"loss", "logits", "grad.model.layers.1.mlp.down_proj.weight", "grad.model.norm.weight"}) {
    const VerifyResult result = verify(2, changed([&](const std::string& name, Changed& tensor) {
                                         if (name == wrong) scale(tensor, 1.001F);
                                         return true;
                                       }));
    EXPECT_FALSE(result.passed()) << wrong;
    EXPECT_EQ(result.tensors.front().name, wrong);
    EXPECT_NEAR(result.tensors.front().error, 0.001, 1e-4);
    EXPECT_THAT(result.table(3), HasSubstr("FAILED"));
    EXPECT_EQ(result.to_json()["passed"], false);
  }
}

TEST_F(VerifyReference, a_reference_that_is_not_a_number_fails) {
  const VerifyResult result = verify(1, changed([&](const std::string& name, Changed& tensor) {
                                       if (name == "logits")
                                         scale(tensor, std::numeric_limits<float>::quiet_NaN());
                                       return true;
                                     }));
  EXPECT_FALSE(result.passed());
  EXPECT_EQ(result.to_json()["tensors"][0]["error"], "inf");
}

TEST_F(VerifyReference, what_is_missing_or_of_another_shape_is_named) {
  const auto without = [&](const std::string& gone) {
    return changed([&](const std::string& name, Changed& /*tensor*/) { return name != gone; });
  };
  EXPECT_THAT(refusal(without("grad.model.norm.weight")), HasSubstr("grad.model.norm.weight"));
  EXPECT_THAT(refusal(without("logits")), HasSubstr("logits"));
  EXPECT_THAT(refusal(changed([](const std::string& name, Changed& tensor) {
                if (name == "grad.model.norm.weight")
                  tensor.shape = {static_cast<int64_t>(tensor.shape[0] / 2), 2};
                return true;
              })),
              HasSubstr("grad.model.norm.weight"));
  const auto keep = [](const std::string& /*name*/, Changed& /*tensor*/) { return true; };
  EXPECT_THAT(refusal(changed(keep, {{"grad.model.extra.weight", {"F32", {1}, std::string(4, '\0')}}})),
              HasSubstr("no such parameter"));
}

TEST_F(VerifyReference, an_id_outside_the_vocabulary_is_named) {
  EXPECT_THAT(refusal(changed([](const std::string& name, Changed& tensor) {
                const int64_t wrong = 4711;
                if (name == "input_ids") std::memcpy(tensor.bytes.data(), &wrong, sizeof(wrong));
                return true;
              })),
              HasSubstr("4711"));
}

TEST_F(VerifyReference, positions_begin_documents_that_no_label_crosses) {
  const SafetensorsFile file(kModel / "reference.safetensors");
  const std::vector<int64_t> shape = file.at("input_ids").shape;
  const auto with_positions = [&](int64_t restart, int64_t first) {
    Changed positions{"I64", shape, {}};
    for (int64_t b = 0; b < shape[0]; ++b)
      for (int64_t s = 0; s < shape[1]; ++s) {
        const int64_t position = s >= restart ? s - restart + first : s;
        positions.bytes.append(reinterpret_cast<const char*>(&position), sizeof(position));
      }
    return changed([](const std::string& name, Changed& /*tensor*/) { return name != "position_ids"; },
                   {{"position_ids", positions}});
  };
  EXPECT_EQ(refusal(with_positions(shape[1], 0)), "no error");
  EXPECT_THAT(refusal(with_positions(20, 0)), HasSubstr("label at token 20"));
  EXPECT_THAT(refusal(with_positions(20, 3)), HasSubstr("token 20 has position 3 after 19"));
}

}  // namespace
}  // namespace trireme
