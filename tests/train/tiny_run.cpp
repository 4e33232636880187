#include "tests/train/tiny_run.h"

#include <mutex>

#include <ATen/Parallel.h>

#include "trireme/base/safetensors.h"
#include "trireme/comm/thread_world.h"
#include "trireme/data/indexed_dataset_writer.h"

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

TinyOutcome train_on_ranks(int ranks, const TrainOptions& options, int64_t stop_after) {
  at::set_num_threads(1);  // steps of a millisecond gain nothing from more
  TinyOutcome result;
  std::mutex mutex;
  std::atomic<bool> stop{false};
  run_ranks_as_threads(ranks, [&](World& world) {
    TrainHooks hooks;
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
  });
  return result;
}

std::map<std::string, std::string> tensors_of(const std::filesystem::path& dir) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const auto& [name, tensor] : file.entries())
      all[name] = std::string(reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes));
  }
  return all;
}

}  // namespace trireme::testing
