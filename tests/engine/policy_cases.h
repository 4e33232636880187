// The engine's choices that must not change results (memory policies, ways to share a sequence), as cases to
// run: a table in which every pair of choices that can stand together occurs.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/engine/engine_options.h"

namespace trireme::testing {

struct PolicyCase {
  int ranks = 1;
  int micro = 1;  // micro-batches of each data-parallel rank, so that all cases see the same 4 samples
  bool packed = false;
  std::string adapter = {};  // LoRA: the folder of write_policy_model that is trained; empty: the model
  EngineOptions options;
};

// Seeded: the same at each call. `folder` is what cases offload to that use the disk.
std::vector<PolicyCase> every_pair_of_policies(const std::filesystem::path& folder);

// How far a case's numbers may be from the plain run's, relative to each tensor's largest entry.
double tolerance_of(const PolicyCase& policy);

std::string describe(const PolicyCase& policy);

struct PolicyOutcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;  // of the first step; none with update_in_backward
  std::map<std::string, at::Tensor> weights_before;
  std::map<std::string, at::Tensor> weights;  // after the steps
};

// How far `outcome` moved the weights from where `plain` moved them, relative to that way, of the worst
// tensor: AdamW's first steps follow signs, so that a single weight may differ by all of its update, but a
// tensor's norm may not. Norms beside LoRA, of 32 entries each with gradients near zero, count as one tensor.
double change_error(const PolicyOutcome& outcome, const PolicyOutcome& plain);
// What it may be.
double change_tolerance_of(const PolicyCase& policy);

// Writes the model that the cases are for, with an adapter for it inside.
void write_policy_model(const std::filesystem::path& folder);

// Runs `steps` steps over threads as ranks; what rank 0 saw, on the CPU.
PolicyOutcome run_policy(const std::filesystem::path& model, const PolicyCase& policy,
                         const OptimizerKind& optimizer, int steps);

// Plain runs of a model, each made once: one rank on the CPU, nothing sharded, offloaded, recomputed or
// tiled.
class PlainRuns {
 public:
  explicit PlainRuns(std::filesystem::path model) : model_(std::move(model)) {}
  // With the precision, packing and clipping of `policy`.
  const PolicyOutcome& of(const PolicyCase& policy, const OptimizerKind& optimizer, int steps);

 private:
  std::filesystem::path model_;
  std::map<std::tuple<Precision, double, std::string, bool, std::string, int>, PolicyOutcome> runs_;
};

}  // namespace trireme::testing
