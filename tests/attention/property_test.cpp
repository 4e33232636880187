// Random cases of attention over ranks (threads), forward and backward, against the definition in fp64. A
// seed is a case:
//
//   TRIREME_PROPERTY_CASES=10000   as many cases, those of seeds 0, 1, 2, ... (500 without it)
//   TRIREME_PROPERTY_CASE=123      this one alone
#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/thread_world.h"
#include "trireme/kernels/tile_gemm.h"

#include "tests/attention/random_sharded_case.h"

namespace trireme {
namespace {

using trireme_test::draw_case;
using trireme_test::largest_difference;
using trireme_test::OracleResult;
using trireme_test::ShardedCase;
using trireme_test::ShardedInputs;
using trireme_test::ShardedResult;

constexpr uint64_t kCases = 500;
constexpr int kEnoughFailures = 10;
// Queries, keys, values and upstream gradients are of unit size, and so are the terms of dq and dk. Where
// queries see few keys these cancel, to zero if they see one: what fp32 leaves of them is measured so.
constexpr double kGradientTerms = 1;

std::vector<uint64_t> seeds_to_run() {
  if (const char* one = std::getenv("TRIREME_PROPERTY_CASE")) return {std::stoull(one)};
  const char* count = std::getenv("TRIREME_PROPERTY_CASES");
  std::vector<uint64_t> seeds(count != nullptr ? std::stoull(count) : kCases);
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = i;
  return seeds;
}

double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.abs().max().item<double>();
}

// What differs from the truth by more than it may; empty: nothing.
std::string findings(const ShardedCase& c, const ShardedInputs& in, const ShardedResult& got) {
  const OracleResult truth = trireme_test::truth_of(c, in);
  std::ostringstream out;
  const auto judge = [&](const char* name, const at::Tensor& mine, const at::Tensor& wanted, double allowed) {
    const double error = largest_difference(mine, wanted);
    if (!(error <= allowed)) out << "\n  " << name << ": error " << error << ", allowed " << allowed;
  };
  const double o = largest(truth.o), dv = largest(truth.dv), dq = largest(truth.dq), dk = largest(truth.dk);
  const double dq_terms = std::max(dq, kGradientTerms), dk_terms = std::max(dk, kGradientTerms);
  if (c.dtype == at::kFloat) {
    judge("o", got.o, truth.o, 1e-5 * o);
    judge("lse", got.lse, truth.lse, 5e-6 * std::max(1.0, largest(truth.lse)));
    judge("dq", got.dq, truth.dq, 1e-5 * dq_terms);
    judge("dk", got.dk, truth.dk, 1e-5 * dk_terms);
    judge("dv", got.dv, truth.dv, 1e-5 * dv);
    return out.str();
  }
  // Twice what the plain implementation errs, or what keeping o in 16 bits costs; and a few roundings of what
  // is largest, for results of few entries: P, dS and the result are rounded where a processor multiplies in
  // bf16.
  const OracleResult plain = trireme_test::plain_of(c, in), kept = trireme_test::truth_of(c, in, c.dtype);
  const double floor = c.dtype == at::kHalf ? 1e-3 : processor_bf16_units() ? 1.2e-2 : 8e-3;
  const auto twice = [](const at::Tensor& x, const at::Tensor& of_truth) {
    return 2 * largest_difference(x, of_truth);
  };
  judge("o", got.o, truth.o, std::max(twice(plain.o, truth.o), floor * o));
  judge("lse", got.lse, truth.lse, 1e-3 * std::max(1.0, largest(truth.lse)));
  judge("dq", got.dq, truth.dq,
        std::max({twice(plain.dq, truth.dq), twice(kept.dq, truth.dq), floor * dq, 1e-5 * dq_terms}));
  judge("dk", got.dk, truth.dk,
        std::max({twice(plain.dk, truth.dk), twice(kept.dk, truth.dk), floor * dk, 1e-5 * dk_terms}));
  judge("dv", got.dv, truth.dv, std::max(twice(plain.dv, truth.dv), floor * dv));
  return out.str();
}

void report(uint64_t seed, const std::string& what) {
  ADD_FAILURE() << "case " << seed << ": " << draw_case(seed) << what
                << "\n  alone: TRIREME_PROPERTY_CASE=" << seed << " property_test";
}

// Cases of one U x R, one after another in one world of threads.
class CasesOfOneMesh {
 public:
  CasesOfOneMesh(int ulysses, int ring, std::vector<uint64_t> seeds, int& failures)
      : ulysses_(ulysses), ring_(ring), seeds_(std::move(seeds)), failures_(failures) {}

  void run() {
    // A case that throws ends its world; those after it get another.
    while (next_ < seeds_.size() && failures_ < kEnoughFailures) {
      reached_.assign(ulysses_ * ring_, next_);
      try {
        run_ranks_as_threads(
            ulysses_ * ring_, [this](World& world) { run_rank(world); }, std::chrono::minutes(10));
        return;
      } catch (const std::exception& error) {
        const size_t broken = *std::max_element(reached_.begin(), reached_.end());
        report(seeds_.at(broken), cat("\n  ended with: ", error.what()));
        ++failures_;
        next_ = broken + 1;
      }
    }
  }

 private:
  void run_rank(World& world) {
    const Mesh mesh = make_mesh(world, {.ulysses = ulysses_, .ring = ring_});
    for (size_t i = next_; i < seeds_.size(); ++i) {
      reached_[world.rank()] = i;
      const ShardedCase c = draw_case(seeds_[i]);
      if (world.rank() == 0) {
        inputs_ = trireme_test::draw_inputs(c, seeds_[i]);
        whole_ = trireme_test::nothing_yet(c);
      }
      barrier(*mesh.all);
      if (failures_ >= kEnoughFailures) return;
      trireme_test::run_rank(mesh, c, inputs_, whole_);
      barrier(*mesh.all);
      if (world.rank() != 0) continue;
      const std::string found = findings(c, inputs_, whole_);
      if (found.empty()) continue;
      report(seeds_[i], found);
      ++failures_;
    }
  }

  const int ulysses_, ring_;
  const std::vector<uint64_t> seeds_;
  int& failures_;                // rank 0 counts, before the barrier after which all look
  size_t next_ = 0;              // case of a world that begins
  std::vector<size_t> reached_;  // of each rank
  ShardedInputs inputs_;
  ShardedResult whole_;
};

TEST(AttentionProperty, every_mode_equals_the_definition_forward_and_backward) {
  std::map<std::pair<int, int>, std::vector<uint64_t>> by_mesh;
  for (const uint64_t seed : seeds_to_run()) {
    const ShardedCase c = draw_case(seed);
    by_mesh[{c.ulysses, c.ring}].push_back(seed);
  }
  const int threads_before = at::get_num_threads();
  at::set_num_threads(1);
  int failures = 0;
  for (const auto& [axes, seeds] : by_mesh) CasesOfOneMesh(axes.first, axes.second, seeds, failures).run();
  at::set_num_threads(threads_before);
}

// Cases that leave a mode out would prove nothing of it.
TEST(AttentionProperty, the_cases_of_the_gate_reach_every_mode) {
  std::map<std::string, int> reached;
  const auto count = [&](const char* what, bool is) { reached[what] += is ? 1 : 0; };
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const ShardedCase c = draw_case(seed);
    const bool ring = c.ring > 1 && c.method == RingMethod::ring;
    const bool gather = c.ring > 1 && c.method == RingMethod::gather;
    const bool causal = c.mask.causality == Causality::causal;
    count("Ulysses alone", c.ulysses > 1 && c.ring == 1);
    count("ring alone", ring && c.ulysses == 1);
    count("gather alone", gather && c.ulysses == 1);
    count("Ulysses and ring", ring && c.ulysses > 1);
    count("Ulysses and gather", gather && c.ulysses > 1);
    count("Ulysses that keeps by heads", c.ulysses > 1 && c.keeps_by_heads && c.head_chunks == 1);
    count("8 ranks", c.ranks() == 8);
    count("one rank", c.ranks() == 1);
    count("fewer tokens than ranks", c.tokens < c.ranks());
    count("heads that do not divide", c.query_heads % c.ulysses != 0);
    count("key/value heads on several ranks", c.kv_heads < c.ulysses);
    count("head chunks", c.head_chunks > 1);
    count("head chunks of a ring", c.head_chunks > 1 && ring);
    count("more head chunks than heads", c.head_chunks > c.query_heads / c.ulysses);
    count("uneven head chunks", c.head_chunks > 1 && c.query_heads % (c.ulysses * c.head_chunks) != 0);
    count("window in a ring", ring && c.mask.window > 0);
    count("window, full", c.mask.window > 0 && !causal);
    count("documents in a ring", ring && !c.cu_seqlens.empty());
    count("documents, gathered keys", gather && !c.cu_seqlens.empty());
    count("documents and a window, full, in a ring",
          ring && !causal && c.mask.window > 0 && !c.cu_seqlens.empty());
    count("a batch of documents", c.cu_seqlens.size() > 1);
    count("sparse blocks, full", !c.mask.sparse.dense() && !causal);
    count("sparse blocks, causal, over ranks", !c.mask.sparse.dense() && causal && c.ulysses > 1);
    count("bf16 in a ring", ring && c.dtype == at::kBFloat16);
    count("fp16 in a ring", ring && c.dtype == at::kHalf);
    count("the reference kernel in a ring", ring && c.kernel == AttentionKernel::reference);
  }
  for (const auto& [what, times] : reached) EXPECT_GE(times, 5) << what;
}

}  // namespace
}  // namespace trireme
