#include "trireme/cli/eval.h"

#include <iostream>

#include <c10/core/DeviceGuard.h>

#include "trireme/base/error.h"
#include "trireme/cli/checkpoint_directory.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/scratch_folder.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/loss_by_position.h"
#include "trireme/train/training_data.h"

namespace trireme {

void EvalFlags::declare(OptionParser& parser) {
  parser.text("model_name_or_path", model, "model folder, or org/name in the Hugging Face cache");
  parser.path("checkpoint", checkpoint, "a run's folder (its newest checkpoint) or one checkpoint, instead");
  data.declare(parser, "eval_file");
  parser.real("validation_split_percentage", validation_split_percentage,
              "only this end of --eval_file; 0: all of it");
  parser.count("max_eval_samples", max_eval_samples, "samples at most; 0: all");
  parser.count("buckets", buckets, "equal ranges of positions; 0: by powers of two");
  parser.flag("bf16", bf16, "compute in bf16");
  parser.flag("json", json, "print JSON");
  engine.declare(parser);
}

EvalOptions EvalFlags::resolve(const OptionParser& parser, const RankPlace& place) const {
  if (model.empty() == checkpoint.empty())
    throw ConfigError("trireme eval loss needs one of --model_name_or_path and --checkpoint");
  EvalOptions options;
  options.model_dir = checkpoint.empty() ? find_model_directory(model) : find_checkpoint(checkpoint);
  options.samples =
      resolve_samples(data.samples(parser), read_model_config(options.model_dir), options.model_dir);
  options.engine = engine.resolve(place);
  options.engine.purpose = Purpose::evaluation;
  options.engine.precision = bf16 ? Precision::bf16 : Precision::fp32;
  check_packing(options.samples.packing, options.engine);
  return options;
}

namespace {

int run_loss(const std::vector<std::string>& arguments) {
  EvalFlags flags;
  OptionParser parser("eval loss",
                      "Mean loss of each range of positions over a held-out set, split over ranks.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  const RankPlace place = place_from_environment();
  EvalOptions options = flags.resolve(parser, place);
  if (place.local_size < place.size && !is_indexed_dataset(flags.data.file))
    throw ConfigError(cat("the ranks are on several machines: turn ", flags.data.file.string(),
                          " into a tokenized set that all of them see (trireme tokenize) and evaluate that"));
  const c10::DeviceGuard guard(options.engine.device);
  const auto world = join_run(place, options.engine, flags.engine.timeout());
  const int machine_ranks = world->least_machine_ranks();
  set_degrees(options.engine, flags.engine.degrees(parser, machine_ranks, options.model_dir));
  const auto engine = assemble(*world, options.model_dir, options.engine);
  Agreement agreement = engine->agreement();

  const ScratchFolder scratch(place.rank, agreement);
  TokenSource source;
  source.set =
      open_tokens({flags.data.file, options.model_dir, scratch.path() / "eval", flags.data.text_field,
                   !flags.data.no_append_eos, engine->config().vocab_size, false},
                  place.rank, agreement);
  source.range = flags.validation_split_percentage > 0
                     ? split_held_out(*source.set, flags.validation_split_percentage / 100).held_out
                     : whole_set(*source.set);
  LoaderOptions loader = sample_loader_options(options.samples, engine->config());
  loader.sequence_tokens = flags.data.max_seq_length;
  loader.dp_size = engine->mesh().dp_size;
  loader.dp_index = engine->mesh().dp_index;
  loader.ulysses = options.engine.ulysses;
  loader.ring = options.engine.ring;
  loader.sp_rank = engine->mesh().sp->rank();
  EvaluationWalk walk(source.set, source.range, loader);
  if (flags.max_eval_samples > 0) walk.limit_rows(flags.max_eval_samples);
  const PositionLoss result =
      evaluate_loss_by_position(*engine, walk,
                                flags.buckets > 0 ? equal_edges(flags.data.max_seq_length, flags.buckets)
                                                  : power_of_two_edges(flags.data.max_seq_length));
  Json record = result.to_json();
  record["packing"] = name_of(options.samples.packing);
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
