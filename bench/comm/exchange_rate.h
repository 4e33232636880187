// What the exchanges of one layer's attention cost, method by method: the layer is run forward and backward
// on random q, k and v, with real attention between the exchanges, and Group::traffic() is held against the
// byte formulas (attention/exchange_bytes.h). A count that differs from its formula is an InternalError.
//
//   ulysses    U = P          qkv_BsND, do_BsHD -> o_BsHD, dqkv_BsND
//   ring       R = P          the same
//   gather     R = P          the same
//   hybrid     U x R = P      the same
//   megatron   tensor and sequence parallelism over P ranks (megatron_exchanges.h): x_sBM -> z_sBM, dx_sBM
//
// Projections and the MLP are left out of all of them: the time of a layer here is attention and exchanges.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/ATen.h>

#include "trireme/attention/exchange_bytes.h"
#include "trireme/attention/sequence_attention.h"
#include "trireme/base/enum_names.h"
#include "trireme/comm/world.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/measure/spread.h"

namespace trireme {

enum class ExchangeMethod { ulysses, ring, gather, hybrid, megatron };
constexpr auto enum_names(ExchangeMethod) {
  using enum ExchangeMethod;
  return std::to_array<EnumName<ExchangeMethod>>(
      {{ulysses, "ulysses"}, {ring, "ring"}, {gather, "gather"}, {hybrid, "hybrid"}, {megatron, "megatron"}});
}
// By its name; else a ConfigError that lists the names.
ExchangeMethod parse_exchange_method(const std::string& text);

// A method over U x R ranks.
struct MethodPartition {
  ExchangeMethod method = ExchangeMethod::ulysses;
  int ulysses = 1;                            // U; of megatron the tensor-parallel ranks
  int ring = 1;                               // R
  RingMethod ring_method = RingMethod::ring;  // of a hybrid

  int ranks() const { return ulysses * ring; }
  // "ulysses 4", "hybrid 2x2", "hybrid 2x2 (gather)"
  std::string description() const;
  bool operator==(const MethodPartition&) const = default;
};

// The method over `ranks` ranks. A hybrid takes as many Ulysses ranks as divide both `ranks` and
// `hybrid_ulysses`.
MethodPartition partition_over(ExchangeMethod method, int ranks, int hybrid_ulysses = 1,
                               RingMethod hybrid_ring_method = RingMethod::ring);
// The most Ulysses ranks of a hybrid that has both kinds, at most one a query head; 0 where there is none.
int most_hybrid_ulysses(int ranks, int64_t query_heads);

struct ExchangeRateOptions {
  int64_t batch = 1;     // B
  int64_t tokens = 0;    // S, of a sample
  int64_t heads = 0;     // H
  int64_t kv_heads = 0;  // K
  int64_t head_dim = 0;  // D
  int64_t hidden = 0;    // M; 0: H D
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  AttentionKernel attention = AttentionKernel::automatic;
  int head_chunks = 1;
  int64_t repeats = 5;  // measured; one more warms up
};

// By formula, of one rank.
ExchangeBytes formula_bytes(const MethodPartition& shape, const ExchangeRateOptions& options, int rank);
// The most of any rank, each direction by itself.
ExchangeBytes most_formula_bytes(const MethodPartition& shape, const ExchangeRateOptions& options);

// Throws InternalError that names both unless they are equal.
void check_formula(const std::string& what, const ExchangeBytes& measured, const ExchangeBytes& formula);

struct ExchangeRate {
  MethodPartition shape;
  // A rank's collectives, the most of any rank.
  int64_t forward_calls = 0;
  int64_t backward_calls = 0;
  ExchangeBytes sent;          // by this rank, as counted, and therefore by formula
  ExchangeBytes most_sent;     // by any rank, as counted: each direction by itself
  ExchangeBytes most_formula;  // the same by formula
  // Each of the slowest rank. Waiting for ranks that come later is part of an exchange.
  Spread layer_seconds;
  Spread exchange_seconds;

  int64_t calls() const { return forward_calls + backward_calls; }
  double exchange_share() const { return exchange_seconds.median / layer_seconds.median; }
};

// Collective over the world, whose size is the shape's; every rank gets the same result, `sent` apart. Throws
// ConfigError: more Ulysses ranks than query heads; InternalError: counted bytes are not the formula's.
ExchangeRate measure_exchange_rate(World& world, const MethodPartition& shape,
                                   const ExchangeRateOptions& options);

}  // namespace trireme
