// What the parts of a step's work are counted by: operations on this rank's rows, products, messages. Layers
// that do the same are counted once, `times`.
#pragma once

#include <algorithm>
#include <cmath>

#include "trireme/kernels/token_tiles.h"
#include "trireme/plan/layer_products.h"
#include "trireme/plan/step_work.h"

namespace trireme {

struct WorkCounter {
  explicit WorkCounter(const PlannedStep& planned)
      : step(planned),
        inputs(planned.inputs),
        model(planned.inputs.model),
        rows(static_cast<double>(inputs.batch * inputs.shard_tokens)),
        tile_rows(static_cast<double>(largest_tile(inputs.batch * inputs.shard_tokens, inputs.tile_tokens))),
        head_rows(static_cast<double>(
            largest_tile(inputs.batch * inputs.shard_tokens, inputs.logits_tile_tokens))) {}

  const PlannedStep& step;
  const ForecastInputs& inputs;
  const ModelSizes& model;
  const double rows, tile_rows, head_rows;  // r, and those of a tile of tokens and of logits
  double times = 1;
  double gathered_elements = 0;  // by ZeRO 3, of one rank too
  StepWork work;

  // Values of a token.
  double hidden() const { return static_cast<double>(model.hidden); }

  void add(WorkKind kind, double size, double width, double amount) {
    for (WorkItem& item : work.items)
      if (item.kind == kind && item.size == size && item.width == width) {
        item.amount += times * amount;
        return;
      }
    work.items.push_back({kind, size, width, times * amount});
  }
  void send(TrafficKind kind, double calls, double bytes) {
    if (bytes <= 0) return;
    for (TrafficItem& item : work.traffic)
      if (item.kind == kind) {
        item.calls += times * calls;
        item.bytes += times * bytes;
        return;
      }
    work.traffic.push_back({kind, times * calls, times * bytes});
  }

  // Of every token, `width` values each, in tiles.
  void token_wise(WorkKind kind, double width) { add(kind, tile_rows * width, 0, rows * width); }

  // `width`: the rows of a product.
  void multiply(WorkKind kind, const LayerProducts::Sides& sides, double width) {
    add(kind, static_cast<double>(std::min(sides.k, sides.n)), width * sides.rows_share,
        2 * rows * sides.elements());
  }

  // The rows that a weight gradient's rate is looked up by. Rates are of products that are added, which read
  // the sum and write it; the first one only writes it. So n products pass over the sum 2 n - 1 times and not
  // 2 n, as products of that many more rows would.
  double gradient_width(double product_rows) const {
    const double of_micro_batch = std::ceil(rows / product_rows);
    const double products = inputs.zero < 2 ? of_micro_batch * inputs.micro_batches : of_micro_batch;
    return product_rows * 2 * products / (2 * products - 1);
  }

  double others_share() const {
    return static_cast<double>(inputs.ranks - 1) / static_cast<double>(inputs.ranks);
  }
  // By ZeRO 3; other stages hold units whole.
  void gather(int64_t elements) {
    if (inputs.zero != 3) return;
    gathered_elements += times * static_cast<double>(elements);
    const auto bytes = static_cast<double>(elements * inputs.tile_bytes);
    send(TrafficKind::gathered_parameters, 1, bytes * others_share());
    if (inputs.offload.parameters != Offload::none)
      send(TrafficKind::offloaded_parameters, 1, bytes / static_cast<double>(inputs.ranks));
  }
};

}  // namespace trireme
