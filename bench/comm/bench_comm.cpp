#include "bench/comm/bench_comm.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>

#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>

#include "trireme/base/contains.h"
#include "trireme/base/error.h"
#include "trireme/base/split.h"
#include "trireme/cli/bench.h"
#include "trireme/cli/model_directory.h"
#include "trireme/comm/thread_world.h"
#include "trireme/measure/fitted_link.h"
#include "trireme/model/model_config.h"

#include "bench/comm/comm_report.h"
#include "bench/comm/exchange_rate.h"

namespace trireme {
namespace {

// Worlds of several sizes where ranks are threads; under a launcher, or alone, the one that was started.
class Worlds {
 public:
  Worlds(const RankIdentity& identity, const EngineOptions& options, const BenchCommFlags& flags)
      : timeout_(flags.process.timeout()), threads_(static_cast<int>(flags.ranks_as_threads.value_or(0))) {
    if (!threads()) world_ = join_run(identity, options, flags.process);
  }
  bool threads() const { return threads_ > 0; }
  bool can_start(int ranks) const { return threads() || ranks == world_->size(); }
  void run(int ranks, const std::function<void(World&)>& body) const {
    if (threads())
      run_ranks_as_threads(ranks, body, timeout_);
    else
      body(*world_);
  }

 private:
  std::chrono::milliseconds timeout_;
  int threads_ = 0;  // 0: ranks are no threads
  std::unique_ptr<World> world_;
};

void take_model(const OptionParser& parser, const BenchCommFlags& flags, ExchangeRateOptions& options) {
  options.heads = flags.heads;
  options.kv_heads = flags.kv_heads;
  options.head_dim = flags.head_dim;
  options.hidden = flags.heads * flags.head_dim;
  if (!parser.given("model_name_or_path")) return;
  for (const char* flag : {"heads", "kv_heads", "head_dim"})
    if (parser.given(flag))
      throw ConfigError(
          cat("--", flag, " and --model_name_or_path contradict each other: give the model, or its sizes"));
  const ModelConfig config = read_model_config(find_model_directory(flags.model));
  options.heads = config.num_attention_heads;
  options.kv_heads = config.num_key_value_heads;
  options.head_dim = config.head_dim;
  options.hidden = config.hidden_size;
}

ExchangeRateOptions options_of(const OptionParser& parser, const BenchCommFlags& flags,
                               const EngineOptions& engine, int ranks) {
  if (flags.tokens < ranks)
    throw ConfigError(
        cat("--tokens ", flags.tokens, " over ", ranks, " ranks: expected one token a rank or more"));
  ExchangeRateOptions options;
  take_model(parser, flags, options);
  share_heads(options.heads, options.kv_heads, 1);  // refuses heads that do not divide
  options.batch = flags.batch;
  options.tokens = flags.tokens;
  options.dtype = flags.dtype;
  options.device = engine.device;
  options.attention = engine.attention;
  options.head_chunks = flags.head_chunks;
  options.repeats = flags.repeats;
  return options;
}

// U of the hybrid; 0 where these ranks have none of both kinds and none was asked for.
int hybrid_ulysses(const BenchCommFlags& flags, int ranks, int64_t query_heads) {
  if (flags.ulysses == 0 && flags.ring == 0) return most_hybrid_ulysses(ranks, query_heads);
  const int64_t ulysses = flags.ulysses > 0 ? flags.ulysses : ranks / flags.ring;
  const int64_t ring = flags.ring > 0 ? flags.ring : ranks / flags.ulysses;
  if (ulysses * ring != ranks) {
    std::string pairs;
    for (int u = 1; u <= ranks; ++u)
      if (ranks % u == 0) pairs += cat(pairs.empty() ? "" : ", ", u, " x ", ranks / u);
    throw ConfigError(cat("the hybrid's --ulysses ", ulysses, " x --ring ", ring, " are not the ", ranks,
                          " ranks; they may be ", pairs));
  }
  return static_cast<int>(ulysses);
}

struct Choice {
  std::vector<MethodPartition> shapes;
  std::vector<std::string> left_out;
  int hybrid_ulysses = 1;
};

// All methods that the ranks have, or those that were asked for, which they must have.
Choice choose_methods(const OptionParser& parser, const BenchCommFlags& flags, int ranks,
                      int64_t query_heads) {
  std::vector<ExchangeMethod> methods;
  const bool asked = parser.given("methods");
  if (asked) {
    for (const std::string& word : split(flags.methods, ',')) methods.push_back(parse_exchange_method(word));
  } else {
    for (const auto& [method, name] : enum_names(ExchangeMethod{})) methods.push_back(method);
  }
  const bool hybrid = contains(methods, ExchangeMethod::hybrid);
  for (const char* flag : {"ulysses", "ring", "ring_method"})
    if (parser.given(flag) && !hybrid)
      throw ConfigError(cat("--", flag, " is the hybrid's, which --methods ", flags.methods, " leaves out"));

  Choice choice;
  for (const ExchangeMethod method : methods) {
    std::string missing;
    if (method == ExchangeMethod::hybrid) {
      const int ulysses = hybrid_ulysses(flags, ranks, query_heads);
      if (ulysses == 0)
        missing = cat(ranks, " ranks are no product U x R of two factors above 1, U of them at most ",
                      query_heads, " heads");
      else
        choice.hybrid_ulysses = ulysses;
    }
    const MethodPartition shape = partition_over(method, ranks, choice.hybrid_ulysses, flags.ring_method);
    if (missing.empty() && shape.ulysses > query_heads)
      missing = cat(query_heads, " query heads for ", shape.ulysses, " ranks that share them");
    if (missing.empty())
      choice.shapes.push_back(shape);
    else if (asked || (method == ExchangeMethod::hybrid && flags.ulysses + flags.ring > 0))
      throw ConfigError(
          cat("--methods ", name_of(method), ": ", missing, "; leave it out, or change the ranks"));
    else
      choice.left_out.push_back(cat(name_of(method), " (", missing, ")"));
  }
  return choice;
}

void measure_methods(const Worlds& worlds, const Choice& choice, CommReport& report) {
  worlds.run(report.ranks, [&](World& world) {
    const auto group = world.make_group("link", {world.identity().all_ranks()});
    const FittedLink link =
        measure_link(*group, report.options.device, std::max<int64_t>(7, report.options.repeats));
    std::vector<ExchangeRate> rates;
    rates.reserve(choice.shapes.size());
    for (const MethodPartition& shape : choice.shapes)
      rates.push_back(measure_exchange_rate(world, shape, report.options));
    if (world.rank() != 0) return;
    report.link = link;
    report.methods = rates;
  });
}

// Tokens of a rank stay those of the run; 1, 2, 4, ... ranks, and the run's own number.
std::vector<WeakScalingRow> weak_scaling(const Worlds& worlds, const Choice& choice,
                                         const CommReport& report) {
  const int64_t tokens_of_rank = (report.options.tokens + report.ranks - 1) / report.ranks;
  std::vector<int> sizes;
  for (int ranks = 1; ranks < report.ranks; ranks *= 2) sizes.push_back(ranks);
  sizes.push_back(report.ranks);
  std::vector<WeakScalingRow> rows;
  rows.reserve(sizes.size());
  for (const int ranks : sizes) {
    ExchangeRateOptions options = report.options;
    options.tokens = tokens_of_rank * ranks;
    options.repeats = 1;
    std::vector<MethodPartition> shapes;
    shapes.reserve(choice.shapes.size());
    for (const MethodPartition& shape : choice.shapes)
      shapes.push_back(partition_over(shape.method, ranks, choice.hybrid_ulysses, shape.ring_method));
    WeakScalingRow row{ranks, options.tokens, worlds.can_start(ranks), {}};
    if (row.measured)
      worlds.run(ranks, [&](World& world) {
        for (const MethodPartition& shape : shapes) {
          const ExchangeRate rate = measure_exchange_rate(world, shape, options);
          if (world.rank() == 0) row.sent.push_back(rate.most_sent);
        }
      });
    else
      for (const MethodPartition& shape : shapes) row.sent.push_back(most_formula_bytes(shape, options));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

void BenchCommFlags::declare(OptionList& list) {
  list.text("model_name_or_path", model, "model folder, or org/name in the Hugging Face cache: its heads");
  list.count("heads", heads, at_least(1), "query heads, where no model is given");
  list.count("kv_heads", kv_heads, at_least(1), "key/value heads");
  list.count("head_dim", head_dim, at_least(1), "width of a head");
  list.count("tokens", tokens, from_to(1, kMostTokens), "tokens of a sample, over all ranks; takes 16k");
  list.count("batch", batch, at_least(1), "samples");
  list.text("methods", methods,
            "some of ulysses,ring,gather,hybrid,megatron; not given: all that the ranks and heads allow");
  list.count("ulysses", ulysses, from_to(0, 1 << 20), "of the hybrid; 0: as many as can be");
  list.count("ring", ring, from_to(0, 1 << 20), "of the hybrid; 0: the rest of the ranks");
  list.choice("ring_method", ring_method, "between the hybrid's ring ranks");
  list.count("head_chunks", head_chunks, from_to(1, 1 << 20), "head chunks, of all but megatron");
  list.choice("dtype", dtype, kDtypeNames, "of what travels and is computed");
  list.count("repeats", repeats, at_least(1), "measured repetitions, after one that warms up");
  list.count("ranks_as_threads", ranks_as_threads, from_to(1, 1 << 20), "ranks within this process");
  list.choice("attention", engine.attention, "attention kernel");
  list.flag("json", json, "print one line of JSON");
  process.list_device(list);
  process.list_ranks(list);
}

int run_bench_comm(const std::vector<std::string>& arguments) {
  BenchCommFlags flags;
  OptionParser parser(
      "bench comm",
      "Counts and times the exchanges of one layer, forward and backward: Ulysses, ring, key/value "
      "gather, their hybrid, Megatron-style sequence parallelism; each beside its formula.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;

  const RankIdentity identity = rank_identity_from_environment();
  const bool threads = flags.ranks_as_threads.has_value();
  if (threads && identity.size > 1)
    throw ConfigError("--ranks_as_threads runs all ranks in one process; do not give it under a launcher");
  EngineOptions engine = flags.engine;
  flags.process.prepare(engine, identity);
  const c10::DeviceGuard guard(engine.device);

  CommReport report;
  report.threads = threads;
  report.ranks = threads ? static_cast<int>(*flags.ranks_as_threads) : identity.size;
  report.options = options_of(parser, flags, engine, report.ranks);
  const Choice choice = choose_methods(parser, flags, report.ranks, report.options.heads);
  report.left_out = choice.left_out;
  const Worlds worlds(identity, engine, flags);
  measure_methods(worlds, choice, report);
  if (report.ranks > 1) report.weak_scaling = weak_scaling(worlds, choice, report);
  if (identity.rank != 0) return 0;
  if (!flags.json) {
    std::cout << text_of(report) << std::flush;
    return 0;
  }
  Json line = json_of(report);
  line["threads"] = at::get_num_threads();
  line["machine"] = benchmarked_machine();
  std::cout << line.dump() << std::endl;
  return 0;
}

}  // namespace trireme
