#include "trireme/train/validate.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/agreement.h"
#include "trireme/data/packed_loader.h"
#include "trireme/data/tokenizer_vocabulary.h"
#include "trireme/device/gpu_identity.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/one_rank.h"
#include "trireme/plan/first_run.h"
#include "trireme/train/check_run.h"
#include "trireme/train/checksum.h"
#include "trireme/train/run_directory.h"
#include "trireme/train/run_lock.h"
#include "trireme/train/shared_output_dir.h"
#include "trireme/train/training_data.h"

namespace trireme {
namespace {

class Validator {
 public:
  Validator(World& world, const TrainOptions& options, const ValidateOptions& how, const ValidateHooks& hooks)
      : world_(world),
        asked_(options),
        options_(options),
        how_(how),
        hooks_(hooks),
        group_(world.make_group("validate", {world.identity().all_ranks()})),
        agreement_(*group_, options.engine.device) {}

  Validation run();

 private:
  void prepare();
  void open_data(const ModelConfig& config);
  // Of the steps that ranks are checked with.
  LoaderOptions loader_options(const StepPart& part) const;
  void try_steps();
  void compare_one_rank();
  void add(Check check) {
    if (hooks_.on_check) hooks_.on_check(check);
    validation_.checks.push_back(std::move(check));
  }

  World& world_;
  const TrainOptions& asked_;
  TrainOptions options_;  // of the longest stage
  const ValidateOptions how_;
  const ValidateHooks& hooks_;
  std::unique_ptr<Group> group_;
  Agreement agreement_;
  std::optional<RunLock> lock_;  // rank 0
  LoaderOptions samples_;
  TokenSource data_;
  int64_t sequence_tokens_ = 0;
  Schedule schedule_;  // of the steps: at the longest stage's peak
  Validation validation_;
};

void add_documents(const StepBatches& batches, Digest& digest) {
  for (const TokenBatch& batch : batches) {
    const auto samples = static_cast<size_t>(batch.tokens.size(0));
    for (size_t sample = 0; sample < samples; ++sample) {
      const Documents documents = documents_of(batch.documents, sample, batch.layout.tokens);
      for (const int64_t end : documents.cu_seqlens()) digest.add_number(static_cast<uint64_t>(end));
    }
  }
}

void Validator::prepare() {
  world_.activity().set_phase(RankPhase::preparing);
  const ModelConfig config = check_run(options_, world_, agreement_);
  const StagePlan plan = plan_run(options_, config, world_);
  const int longest = plan.longest_stage();
  options_ = plan.options[static_cast<size_t>(longest)];
  samples_ = sample_loader_options(options_.samples, config);
  const Schedule& of_stage = plan.stages[static_cast<size_t>(longest)].schedule;
  schedule_ = {.kind = ScheduleKind::constant_with_warmup,
               .peak_learning_rate = of_stage.peak_learning_rate,
               .warmup_steps = std::min(of_stage.warmup_steps, how_.steps / 5),
               .total_steps = how_.steps,
               .warmup_type = of_stage.warmup_type};
  sequence_tokens_ = how_.sequence_tokens > 0
                         ? how_.sequence_tokens
                         : std::min(kSmokeTokens, plan.stages[static_cast<size_t>(longest)].sequence_tokens);
  open_data(config);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const int64_t tokens = plan.stages[stage].sequence_tokens;
    check_positions_reach(tokens, plan.configs[stage],
                          longest_context_tokens(*data_.set, options_.samples.packing, tokens));
  }
}

void Validator::open_data(const ModelConfig& config) {
  const RunDirectory run(options_.output_dir);
  const auto note = [this](const std::string& text) {
    if (hooks_.note) hooks_.note(text);
  };
  agreement_.all_or_none(cat("preparing ", run.path().string()), [&] {
    if (world_.rank() != 0) return;
    lock_.emplace(run.path(), world_.identity().launch_id, note);
    run.prepare();
  });
  check_output_dir_is_shared(run.path(), lock_, world_.rank(), agreement_);
  if (world_.rank() == 0)
    if (const auto text = tell_tokens_without_rows(options_.model_dir, config.vocab_size); !text.empty())
      note(text);
  const DataSources sources = look_at_sources(options_, config.vocab_size, std::nullopt, agreement_, note);
  data_ = open_training_data(sources, options_.validation_split_percentage, world_.rank(), agreement_, note)
              .train;
}

LoaderOptions Validator::loader_options(const StepPart& part) const {
  LoaderOptions loader = step_loader_options(samples_, options_, sequence_tokens_, world_.size());
  loader.dp_index = part.dp_index;
  loader.ulysses = part.ulysses;
  loader.ring = part.ring;
  loader.sp_rank = part.sp_rank;
  return loader;
}

void Validator::try_steps() {
  EngineOptions engine_options = options_.engine;
  engine_options.planned_batch = planned_batch(options_, sequence_tokens_);
  plan_with_documents(engine_options, data_, options_.samples.packing);
  const auto engine = assemble(world_, options_.model_dir, engine_options);
  Mesh& mesh = engine->mesh();
  PackedLoader loader(
      data_.set, data_.range,
      loader_options({mesh.dp_index, mesh.ulysses->size(), mesh.ring->size(), mesh.sp->rank()}));
  Digest documents;
  std::vector<double> losses;
  const MeasuredSteps steps{[&](int64_t step) {
                              world_.activity().set_step(step + 1);
                              StepBatches batches = loader.next();
                              add_documents(batches, documents);
                              return batches;
                            },
                            [&](int64_t step) { return schedule_.learning_rate(step); },
                            [&](const StepResult& result) { losses.push_back(result.loss); }};
  world_.activity().set_phase(RankPhase::training);
  std::string failure;
  std::optional<StepRate> rate;
  try {
    rate = measure_step_rate(*engine,
                             {.steps = how_.steps,
                              .warmup = std::min<int64_t>(3, how_.steps - 1),
                              .matmul_seconds = how_.matmul_seconds},
                             steps);
  } catch (const NotFiniteStep& error) {  // on all ranks
    failure = error.what();
  }

  const auto value = static_cast<int64_t>(documents.value());
  std::vector<uint64_t> digests;
  for (const int64_t of_rank : agreement_.gather_one(value))
    digests.push_back(static_cast<uint64_t>(of_rank));
  Agreement sharing(*mesh.sp, options_.engine.device);
  add(check_documents(digests, !agreement_.any(sharing.of_rank_0(value) != value)));
  Check sane = check_losses(losses, engine->config().vocab_size, failure);
  sane.numbers["peak_learning_rate"] = schedule_.peak_learning_rate;
  add(std::move(sane));
  const std::string kernel = engine->attention_kernel();
  add(check_kernel(kernel, engine->attends_by_reference(), sequence_tokens_));
  if (!rate) {
    add({"throughput", Verdict::not_done, "the steps ended early", Json::object()});
    return;
  }
  const bool on_gpu = !options_.engine.device.is_cpu();
  const OffloadOptions& offload = options_.engine.offload;
  const StepShares shares{
      .step_seconds = rate->median_step_seconds,
      .data_seconds = rate->data_seconds,
      .exchange_seconds = rate->exchange_seconds,
      .offload_seconds = rate->offload_seconds,
      .attention_kernel = kernel,
      .attends_by_reference = engine->attends_by_reference(),
      .tokens_of_rank = options_.per_device_train_batch_size * sequence_tokens_ / mesh.sp->size(),
      .attention_tokens = sequence_tokens_,
      .copies_are_not_timed =
          on_gpu && (offload.parameters != Offload::none || offload.activations != Offload::none)};
  add(check_throughput(*rate, world_.size(), how_.least_matmul_share, shares,
                       published_training_rates(gpu_identity(options_.engine.device).name)));
}

void Validator::compare_one_rank() {
  std::string left_out;
  if (how_.skip_one_rank) left_out = "left out by --skip_one_rank";
  if (world_.size() == 1)
    left_out =
        "this is one rank; trireme launch --nproc_per_node 2 -- validate ... --sp 2 compares two with it";
  if (!left_out.empty()) {
    add({"several ranks equal one", Verdict::not_done, left_out, Json::object()});
    return;
  }
  EngineOptions engine = options_.engine;
  engine.planned_batch = planned_batch(options_, sequence_tokens_);
  engine.planned_batch.samples = 1;
  const auto first_step = [&](const StepPart& part) {
    LoaderOptions loader = loader_options(part);
    loader.batch_size = 1;  // one rank has to hold it
    loader.accumulation_steps = std::min<int64_t>(2, options_.gradient_accumulation_steps);
    return PackedLoader(data_.set, data_.range, loader).next();
  };
  add(check_one_rank(compare_with_one_rank(world_, options_.model_dir, engine, first_step, how_.tolerance)));
}

Validation Validator::run() {
  prepare();
  add(check_memory(dry_run(world_, asked_)));  // first: a process's peak is of all that it did
  try_steps();
  compare_one_rank();
  world_.activity().set_phase(RankPhase::ending);
  return std::move(validation_);
}

}  // namespace

bool Validation::passed() const {
  return std::ranges::none_of(checks, [](const Check& check) { return check.verdict == Verdict::fail; });
}

Json Validation::to_json() const {
  Json list = Json::array();
  for (const Check& check : checks)
    list.push_back({{"name", check.name},
                    {"verdict", name_of(check.verdict)},
                    {"reason", check.reason},
                    {"numbers", check.numbers}});
  return {{"passed", passed()}, {"checks", list}};
}

Validation validate(World& world, const TrainOptions& options, const ValidateOptions& how,
                    const ValidateHooks& hooks) {
  return Validator(world, options, how, hooks).run();
}

}  // namespace trireme
