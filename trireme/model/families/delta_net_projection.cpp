#include "trireme/model/families/delta_net_projection.h"

#include <vector>

namespace trireme::decoder {
namespace {

struct Piece {
  at::Tensor in_projection, apart;  // the latter in columns or gate
};

std::vector<Piece> pieces(const DeltaNet& net, const at::Tensor& projected_TP, const at::Tensor& columns_TC,
                          const at::Tensor& gate_TA) {
  const DeltaHeads& heads = net.heads;
  const int64_t columns = heads.columns(), K = heads.key, values = heads.value / K;
  if (net.projections == DeltaProjections::by_kind)
    return {{projected_TP.narrow(1, 0, columns), columns_TC},
            {projected_TP.narrow(1, columns, heads.output_columns()), gate_TA}};
  // [T, K, width]: so many columns of each key head.
  const auto by_key_head = [K](const at::Tensor& x, int64_t first, int64_t width) {
    return x.narrow(1, first, K * width).unflatten(1, {K, width});
  };
  const int64_t key = heads.key_width, value = values * heads.value_width;
  const int64_t group = 2 * key + 2 * value;
  const at::Tensor qkvz = by_key_head(projected_TP, 0, group);
  const at::Tensor ba = by_key_head(projected_TP, K * group, 2 * values);
  const int64_t b = heads.convolved_columns();
  return {{qkvz.narrow(2, 0, key), by_key_head(columns_TC, 0, key)},
          {qkvz.narrow(2, key, key), by_key_head(columns_TC, K * key, key)},
          {qkvz.narrow(2, 2 * key, value), by_key_head(columns_TC, 2 * K * key, value)},
          {qkvz.narrow(2, 2 * key + value, value), by_key_head(gate_TA, 0, value)},
          {ba.narrow(2, 0, values), by_key_head(columns_TC, b, values)},
          {ba.narrow(2, values, values), by_key_head(columns_TC, b + heads.value, values)}};
}

}  // namespace

void part_projection(const DeltaNet& net, const at::Tensor& projected_TP, const at::Tensor& columns_TC,
                     const at::Tensor& gate_TA) {
  for (const Piece& piece : pieces(net, projected_TP, columns_TC, gate_TA))
    piece.apart.copy_(piece.in_projection);
}

void join_projection(const DeltaNet& net, const at::Tensor& columns_TC, const at::Tensor& gate_TA,
                     const at::Tensor& projected_TP) {
  for (const Piece& piece : pieces(net, projected_TP, columns_TC, gate_TA))
    piece.in_projection.copy_(piece.apart);
}

}  // namespace trireme::decoder
