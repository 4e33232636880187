#include "trireme/engine/memory_bytes.h"

#include <algorithm>
#include <numeric>

#include "trireme/base/sequence_layout.h"
#include "trireme/engine/host_memory_bytes.h"
#include "trireme/engine/memory_moments.h"

namespace trireme {
namespace {

constexpr int64_t kBlock_elements = 16;                      // shares are cut at multiples of it
constexpr int64_t kSumPiece_elements = 64 * 1024;            // comm/collectives.cpp, on the host
constexpr int64_t kNarrowPiece_elements = int64_t{1} << 20;  // shard/optimizer.cpp
constexpr int64_t kRoundedOnDevice_bytes = 4 * 8 + 2;        // shard/stochastic_rounding.cpp, an element

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}
int64_t largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

// shard/disk_tensors.h: two units on their way back, the open one, and the next one read ahead; where units
// are stepped as backward closes them, none is read ahead.
int64_t on_disk_elements(const std::vector<int64_t>& shares, bool read_ahead) {
  return largest_run(shares, read_ahead ? 4 : 3);
}

// Appends a part that starts at a multiple of 16 elements.
class UnitSize {
 public:
  void add(int64_t elements) {
    align();
    elements_ += elements;
  }
  int64_t finish() {
    align();
    return elements_;
  }

 private:
  void align() { elements_ = (elements_ + kBlock_elements - 1) / kBlock_elements * kBlock_elements; }
  int64_t elements_ = 0;
};

int64_t layer_elements(const ModelExtents& model) {
  const int64_t m = model.hidden, i = model.intermediate, d = model.head_dim;
  const int64_t q = model.heads * d, qkv = q + 2 * model.kv_heads * d;
  UnitSize size;
  if (model.encoder) {
    for (const int64_t part : {3 * m * m, 3 * m, m * m, m, m, m, i * m, i, m * i, m, m, m}) size.add(part);
    return size.finish();
  }
  size.add(m);
  size.add(qkv * m);
  if (model.qkv_bias) size.add(qkv);
  if (model.qk_norm) {
    size.add(d);
    size.add(d);
  }
  size.add(m * q);
  if (model.output_bias) size.add(m);
  size.add(m);
  size.add(2 * i * m);
  if (model.mlp_bias) size.add(2 * i);
  size.add(m * i);
  if (model.mlp_bias) size.add(m);
  return size.finish();
}

// ZeRO 3: the units at work are whole, and the next one is on its way, but for what a CPU reads from a disk and gathers.
// Beside a GPU (`uploads`) the share that the next one is gathered from, and that of the one after it, are there as well.
int64_t gathered_elements(const MemoryShape& shape, const std::vector<int64_t>& units,
                          const std::vector<int64_t>& shares, bool uploads) {
  const bool ahead = uploads || shape.offload.parameters != Offload::disk, alone = shape.ranks == 1;
  // Units in the order in which the walk gathers them (engine/unit_order.h), as far as their sizes differ.
  const size_t embedding = 0, head = units.size() - 1, first = std::min<size_t>(1, head - 1), last = head - 1;
  std::vector<size_t> order{embedding};
  const auto visit = [&](size_t unit) {
    if (order.back() != unit || shape.model.layers > 1) order.push_back(unit);
  };
  for (const size_t unit : {first, last, head}) visit(unit);
  if (shape.model.tied) visit(embedding);
  for (const size_t unit : {last, last, first}) visit(unit);
  if (shape.model.encoder) visit(embedding);
  int64_t most = 0;
  for (size_t at = 0; at < order.size(); ++at) {
    // Of a tied matrix the embedding is there beside the head.
    const bool beside_head = at > 0 && order[at - 1] == head && order[at] == embedding;
    int64_t elements = units[order[at]] + (beside_head ? units[head] : 0);
    if (ahead && at + 1 < order.size()) elements += units[order[at + 1]];
    // The share that is gathered goes when its unit is whole; of a disk's none comes two units ahead.
    for (const size_t later : {at + 1, at + 2})
      if (uploads && !alone && later < order.size() &&
          (later == at + 1 || shape.offload.parameters == Offload::cpu))
        elements += shares[order[later]];
    most = std::max(most, elements);
  }
  return most;
}

}  // namespace

int64_t largest_run(const std::vector<int64_t>& values, size_t width) {
  int64_t most = 0, sum = 0;
  for (size_t at = 0; at < values.size(); ++at) {
    sum += values[at];
    if (at >= width) sum -= values[at - width];
    most = std::max(most, sum);
  }
  return most;
}

std::vector<int64_t> unit_elements(const ModelExtents& model) {
  std::vector<int64_t> units(static_cast<size_t>(model.layers) + 2, layer_elements(model));
  UnitSize embedding, head;
  const int64_t m = model.hidden;
  embedding.add(model.vocab * m);
  if (model.encoder) {
    for (const int64_t part : {model.positions * m, model.token_types * m, m, m}) embedding.add(part);
    for (const int64_t part : {m * m, m, m, m}) head.add(part);
    head.add(model.vocab);
  } else {
    head.add(m);
    if (!model.tied) head.add(model.vocab * m);
  }
  units.front() = embedding.finish();
  units.back() = head.finish();
  return units;
}

std::vector<int64_t> share_elements(const std::vector<int64_t>& units, int ranks, int rank) {
  std::vector<int64_t> shares;
  shares.reserve(units.size());
  for (const int64_t elements : units)
    shares.push_back(SequenceLayout{elements / kBlock_elements, ranks}.size(rank) * kBlock_elements);
  return shares;
}

std::vector<int64_t> own_shares(const MemoryShape& shape) {
  const std::vector<int64_t> units = unit_elements(shape.model);
  return shape.zero > 0 ? share_elements(units, shape.ranks, shape.rank) : units;
}

int64_t parameter_bytes(const MemoryShape& shape) {
  const std::vector<int64_t> units = unit_elements(shape.model);
  if (shape.zero < 3) return sum_of(units) * shape.tile_bytes;
  const std::vector<int64_t> shares = own_shares(shape);
  const bool alone = shape.ranks == 1, disk = shape.offload.parameters == Offload::disk;
  if (!on_device(shape, shape.offload.parameters))
    return gathered_elements(shape, units, shares, /*uploads=*/true) * shape.tile_bytes;
  const int64_t gathered = alone ? 0 : gathered_elements(shape, units, shares, /*uploads=*/false);
  if (!disk) return (sum_of(shares) + gathered) * shape.tile_bytes;
  // Alone, a unit is opened in its place and the next one read ahead; tied, the head's and the embedding's.
  const int64_t work =
      alone ? largest_run(shares, 2) + (shape.model.tied ? shares.back() : 0) : gathered + largest(shares);
  const int64_t stepped = on_disk_elements(shares, !shape.update_in_backward);
  if (updates_are_deferred(shape)) return (work + stepped) * shape.tile_bytes;
  // The two units that were stepped last are on their way to the disk still.
  const size_t last = shape.update_in_backward ? 1 : shares.size() - 1;
  return std::max(work + shares[last] + shares[last - 1], stepped) * shape.tile_bytes;
}

int64_t gradient_bytes(const MemoryShape& shape) {
  const std::vector<int64_t> units = unit_elements(shape.model);
  if (shape.zero < 2 && !shape.update_in_backward) return sum_of(units) * kFloat_bytes;
  const std::vector<int64_t> shares = own_shares(shape);
  const bool sums_here = on_device(shape, shape.offload.optimizer);
  const bool leaves = updates_are_deferred(shape) && (shape.update_in_backward || !sums_here);
  // Open at once: the head, or a layer; where the matrix is tied the embedding is open with both. The unit that was
  // closed before is stepped meanwhile, or beside a GPU copied to where it is. (Of a second micro-batch the unit's sum so
  // far is there as well.)
  int64_t most = 0;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const int64_t open = units[unit] + (shape.model.tied && unit > 0 ? units.front() : 0);
    most = std::max(most, open + (leaves && unit + 1 < units.size() ? shares[unit + 1] : 0));
  }
  const int64_t sums = shape.update_in_backward || !sums_here ? 0 : sum_of(shares);
  return (sums + most) * kFloat_bytes;
}

int64_t optimizer_bytes(const MemoryShape& shape) {
  if (!on_device(shape, shape.offload.optimizer)) return 0;
  const std::vector<int64_t> shares = own_shares(shape);
  const int64_t elements = shape.offload.optimizer == Offload::disk
                               ? on_disk_elements(shares, !shape.update_in_backward)
                               : sum_of(shares);
  int64_t bytes = elements * shape.moments * shape.state_bytes;
  if (shape.tile_bytes != kFloat_bytes) bytes += elements * kFloat_bytes;
  // Without a kernel of their own, moments of 16 bits are widened piece by piece, and beside the host rounded in int64.
  if (shape.moments > 0 && shape.state_bytes != kFloat_bytes && !shape.narrow_kernel)
    bytes += std::min(kNarrowPiece_elements, largest(shares)) *
             (shape.moments * kFloat_bytes + (shape.device_is_host ? 0 : kRoundedOnDevice_bytes));
  return bytes;
}

int64_t sum_buffer_bytes(const MemoryShape& shape) {
  if (shape.ranks == 1) return 0;
  const std::vector<int64_t> units = unit_elements(shape.model);
  const int64_t whole = largest(units),
                narrow = shape.reduce_bytes != kFloat_bytes ? whole * shape.reduce_bytes : 0;
  const int64_t share = largest(share_elements(units, shape.ranks, shape.rank));
  // Every rank's block of the share, then their sum; the CPU widens a piece of a 16-bit block to add it.
  const int64_t piece = narrow > 0 && shape.device_is_host ? std::min(kSumPiece_elements, share) : 0;
  const int64_t scatter = narrow + share * shape.ranks * shape.reduce_bytes + (share + piece) * kFloat_bytes;
  return shape.zero == 0 && narrow > 0 ? std::max(scatter, (whole + share) * kFloat_bytes) : scatter;
}

int64_t trade_buffer_bytes(const MemoryShape& shape) {
  if (shape.ranks == 1 || shape.zero < 1 || shape.zero > 2) return 0;
  return unit_elements(shape.model).back() * shape.tile_bytes;
}

MemoryForecast memory_forecast(const MemoryShape& shape) {
  using enum MemoryCategory;
  MemoryForecast forecast;
  MemoryBytes stores;
  stores[parameters] = parameter_bytes(shape);
  stores[gradients] = gradient_bytes(shape);
  stores[optimizer] = optimizer_bytes(shape);
  for (const MemoryMoment& moment : memory_moments(shape)) {
    int64_t total = stores.total() + moment.bytes.total();
    forecast.peak_total_bytes = std::max(forecast.peak_total_bytes, total);
    for (const MemoryCategory category : kAllMemoryCategories)
      forecast.peak[category] = std::max(forecast.peak[category], moment.bytes[category]);
  }
  for (const MemoryCategory category : {parameters, gradients, optimizer})
    forecast.peak[category] += stores[category];
  forecast.host = host_memory_bytes(shape);
  return forecast;
}

}  // namespace trireme
