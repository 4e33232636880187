#include "trireme/cli/eval.h"

#include <iostream>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/cli/checkpoint_directory.h"
#include "trireme/cli/data_flags.h"
#include "trireme/cli/engine_flags.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/scratch_folder.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/train/training_data.h"

namespace trireme {
namespace {

struct EvalFlags {
  std::string model;
  std::filesystem::path checkpoint;
  double validation_split_percentage = 0;
  int64_t max_eval_samples = 0;
  int64_t buckets = 0;
  bool bf16 = false;
  bool json = false;
  DataFlags data;
  EngineFlags engine;
};

void declare(OptionParser& parser, EvalFlags& flags) {
  parser.text("model_name_or_path", flags.model, "model folder, or org/name in the Hugging Face cache");
  parser.path("checkpoint", flags.checkpoint,
              "a run's folder (its newest checkpoint) or one checkpoint, instead");
  flags.data.declare(parser, "eval_file");
  parser.real("validation_split_percentage", flags.validation_split_percentage,
              "only this end of --eval_file; 0: all of it");
  parser.count("max_eval_samples", flags.max_eval_samples, "samples at most; 0: all");
  parser.count("buckets", flags.buckets, "equal ranges of positions; 0: by powers of two");
  parser.flag("bf16", flags.bf16, "compute in bf16");
  parser.flag("json", flags.json, "print JSON");
  flags.engine.declare(parser);
}

int run_loss(const std::vector<std::string>& arguments) {
  EvalFlags flags;
  OptionParser parser("eval loss",
                      "Mean loss of each range of positions over a held-out set, split over ranks.");
  declare(parser, flags);
  if (!parser.parse(arguments)) return 0;
  if (flags.model.empty() == flags.checkpoint.empty())
    throw ConfigError("trireme eval loss needs one of --model_name_or_path and --checkpoint");
  const std::filesystem::path model =
      flags.checkpoint.empty() ? find_model_directory(flags.model) : find_checkpoint(flags.checkpoint);
  const SampleOptions samples = resolve_samples(flags.data.samples(parser), read_model_config(model), model);

  const RankPlace place = place_from_environment();
  if (place.local_size < place.size && !is_indexed_dataset(flags.data.file))
    throw ConfigError(cat("the ranks are on several machines: turn ", flags.data.file.string(),
                          " into a tokenized set that all of them see (trireme tokenize) and evaluate that"));
  EngineOptions options = flags.engine.resolve(place);
  options.purpose = Purpose::evaluation;
  options.precision = flags.bf16 ? Precision::bf16 : Precision::fp32;
  const c10::DeviceGuard guard(options.device);
  check_packing(samples.packing, options);
  const auto world = join_run(place, options, flags.engine.ddp_timeout);
  const int machine_ranks = world->least_machine_ranks();
  set_degrees(options, flags.engine.degrees(parser, machine_ranks, model));
  const auto engine = assemble(*world, model, options);
  Agreement agreement(*engine->mesh().all, options.device);

  const ScratchFolder scratch(place.rank, agreement);
  TokenSource source;
  source.set = open_tokens({flags.data.file, model, scratch.path() / "eval", flags.data.text_field,
                            !flags.data.no_append_eos, engine->config().vocab_size, false},
                           place.rank, agreement);
  source.range = flags.validation_split_percentage > 0
                     ? split_held_out(*source.set, flags.validation_split_percentage / 100).held_out
                     : whole_set(*source.set);
  LoaderOptions loader = sample_loader_options(samples, engine->config());
  loader.sequence_tokens = flags.data.max_seq_length;
  loader.dp_size = engine->mesh().dp_size;
  loader.dp_index = engine->mesh().dp_index;
  loader.ulysses = options.ulysses;
  loader.ring = options.ring;
  loader.sp_rank = engine->mesh().sp->rank();
  EvaluationWalk walk(source.set, source.range, loader);
  if (flags.max_eval_samples > 0) walk.limit_rows(flags.max_eval_samples);
  const PositionLoss result =
      evaluate_loss_by_position(*engine, walk,
                                flags.buckets > 0 ? equal_edges(flags.data.max_seq_length, flags.buckets)
                                                  : power_of_two_edges(flags.data.max_seq_length));
  Json record = result.to_json();
  record["packing"] = name_of(samples.packing);
  if (place.rank == 0) std::cout << (flags.json ? record.dump(1) + "\n" : result.table()) << std::flush;
  return 0;
}

}  // namespace

int run_eval(const std::vector<std::string>& arguments) {
  const std::string usage =
      "usage: trireme eval loss --model_name_or_path DIR --eval_file PATH ... (see --help of it)\n";
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::cout << usage;
    return 0;
  }
  if (arguments.empty() || arguments[0] != "loss")
    throw ConfigError(cat("trireme eval ", arguments.empty() ? std::string() : arguments[0],
                          ": the one evaluation that is built is 'loss': trireme eval loss --help"));
  return run_loss({arguments.begin() + 1, arguments.end()});
}

}  // namespace trireme
