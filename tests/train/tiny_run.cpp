#include "tests/train/tiny_run.h"

#include <mutex>
#include <sstream>

#include <ATen/Parallel.h>

#include "trireme/base/safetensors.h"
#include "trireme/comm/thread_world.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/model/checkpoint_files.h"
#include "trireme/train/run_directory.h"

#include "tests/support/tensor_bytes.h"

namespace trireme::testing {

TinyRun::TinyRun(int64_t tokens) {
  const Json config = tiny_llama_config();
  write_tiny_model(model(), config);
  const auto vocabulary = config["vocab_size"].get<int64_t>();
  IndexedDatasetWriter writer(this->tokens(), vocabulary);
  std::vector<int32_t> document;
  for (int64_t i = 0; i < tokens; ++i) {
    document.push_back(static_cast<int32_t>((i * i / 3 + i) % vocabulary));
    if (document.size() < 37 && i + 1 < tokens) continue;
    writer.add_document(document);
    document.clear();
  }
  writer.finish();
}

TrainOptions TinyRun::options(const std::string& output_name) const {
  TrainOptions options;
  options.model_dir = model();
  options.train_file = tokens();
  options.output_dir = folder() / output_name;
  options.context_stages = "16:5,32:4";
  options.per_device_train_batch_size = 1;
  options.gradient_accumulation_steps = 2;
  options.learning_rate = 1e-2;
  options.warmup_ratio = 0.2;
  options.save_steps = 0;
  options.peak_tflops = 1;
  return options;
}

TrainOptions TinyRun::with_text(const std::string& output_name, const std::string& text,
                                const std::filesystem::path& tokenizer) const {
  Json config = tiny_llama_config();
  config["vocab_size"] = 704;
  std::filesystem::remove_all(model());
  write_tiny_model(model(), config);
  std::filesystem::copy_file(tokenizer, model() / "tokenizer.json");
  folder_.write("text.txt", text);
  TrainOptions options = this->options(output_name);
  options.train_file = this->text();
  return options;
}

std::filesystem::path TinyRun::overflowing_model() const {
  const ModelConfig config = read_model_config(model());
  const ModelLayout layout = make_model_layout(config);
  const CheckpointReader reader(model());
  const auto values_of = [&](int unit) {
    const UnitSpec& spec = layout.units[static_cast<size_t>(unit)];
    at::Tensor flat = at::zeros({spec.elements});
    reader.read_unit(spec, flat);
    if (unit == layout.head_unit()) flat.fill_(3e38F);
    return flat;
  };
  std::filesystem::path large = folder() / "large";
  write_checkpoint(large, config, layout, values_of, at::kFloat, {});
  return large;
}

TinyOutcome train_on_ranks(int ranks, const TrainOptions& options, int64_t stop_after,
                           const RankIdentity& like) {
  at::set_num_threads(1);  // steps of a millisecond gain nothing from more
  TinyOutcome result;
  std::mutex mutex;
  std::atomic<bool> stop{false};
  std::ostringstream output;
  const auto body = [&](World& world) {
    TrainHooks hooks;
    if (world.rank() == 0) hooks.out = &output;
    hooks.stop_requested = &stop;
    hooks.on_step = [&](const StepRecord& record) {
      if (world.rank() != 0) return;
      if (record.step == stop_after) stop.store(true);
      const std::lock_guard<std::mutex> lock(mutex);
      result.losses[record.step] = record.loss;
      result.records[record.step] = record;
    };
    const TrainOutcome outcome = train(world, options, hooks);
    const std::lock_guard<std::mutex> lock(mutex);
    result.outcome = outcome;
  };
  run_ranks_as_threads(ranks, body, std::chrono::seconds(60), like);
  result.output = output.str();
  return result;
}

std::vector<int64_t> saved_steps(const TrainOptions& options) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : RunDirectory(options.output_dir).list()) steps.push_back(entry.step);
  return steps;
}

std::map<std::string, std::string> tensors_of(const std::filesystem::path& dir) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const auto& [name, tensor] : file.entries()) all[name] = bytes_of(tensor);
  }
  return all;
}

}  // namespace trireme::testing
