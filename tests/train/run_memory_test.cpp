// A binary of its own: it makes the caching allocator, which counts bytes, libtorch's for the whole process.
#include <fstream>

#include <gtest/gtest.h>

#include "trireme/device/cpu_caching_allocator.h"
#include "trireme/forecast/store_bytes.h"
#include "trireme/model/model_layout.h"

#include "tests/train/tiny_run.h"

namespace trireme {
namespace {

TEST(RunMemory, of_each_record_is_what_the_tensors_took) {
  install_cpu_caching_allocator();
  const testing::TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:2";
  testing::train_on_ranks(1, options);
  const auto parameters =
      static_cast<double>(make_model_layout(read_model_config(run.model())).parameter_count()) *
      sizeof(float);
  std::ifstream in(options.output_dir / "metrics.jsonl");
  int records = 0;
  for (std::string line; std::getline(in, line); ++records) {
    const Json record = Json::parse(line);
    const Json& memory = record["memory"];
    for (const auto& [category, factor] : {std::pair("parameters", 1), {"gradients", 1}, {"optimizer", 2}}) {
      EXPECT_GE(memory[category].get<double>(), factor * parameters) << category;
      EXPECT_LE(memory[category].get<double>(), 1.5 * factor * parameters) << category;
    }
    EXPECT_GT(memory["activations"].get<double>(), 0);
    EXPECT_GT(record["memory_bytes"].get<double>(), 4 * parameters);
  }
  EXPECT_EQ(records, 2);
}

TEST(RunMemory, of_a_save_in_the_background_is_what_the_forecast_says) {
  install_cpu_caching_allocator();
  const testing::TinyRun run;
  TrainOptions options = run.options("run");
  options.context_stages = "16:4";
  options.save_steps = 2;
  options.engine.save_in_background = true;
  testing::train_on_ranks(2, options);
  ForecastInputs inputs;
  for (const UnitSpec& unit : make_model_layout(read_model_config(run.model())).units)
    inputs.model.unit_elements.push_back(unit.elements);
  inputs.ranks = 2;
  inputs.save_in_background = true;
  std::ifstream in(options.output_dir / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line);
    EXPECT_EQ(record["memory"]["snapshot"], record["step"] > 2 ? snapshot_bytes(inputs) : 0)
        << record["step"];
  }
}

}  // namespace
}  // namespace trireme
