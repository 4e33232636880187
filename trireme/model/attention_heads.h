// The heads of a layer's attention. Most models have the same in every layer; in Gemma 4 those of layers with
// full attention are wider and fewer keys serve them, and layers may take keys and values of an earlier one.
#pragma once

#include <cstdint>

namespace trireme {

struct AttentionHeads {
  int64_t query = 0;      // H
  int64_t key_value = 0;  // K
  int64_t width = 0;      // D
  // One projection gives keys and values: the values are it before the keys' norm and rotation.
  bool keys_are_values = false;
  // What a head gives is multiplied by sigmoid(gate); the gate of a head lies behind its query in their
  // projection (Qwen3.5).
  bool gated = false;
  // Keys and values are an earlier layer's: the projection gives queries alone.
  bool share_keys = false;

  int64_t packed() const { return query + 2 * key_value; }  // N, as attention takes them
  int64_t query_width() const { return query * width; }
  int64_t key_value_width() const { return key_value * width; }
  int64_t gate_width() const { return gated ? query_width() : 0; }
  // Key heads of the layer's projection, and how many times it has them.
  int64_t projected_keys() const { return share_keys ? 0 : key_value; }
  int64_t projections_of_keys() const { return share_keys ? 0 : keys_are_values ? 1 : 2; }
  // Rows of the projection's matrix.
  int64_t projected_width() const {
    return query_width() + gate_width() + projections_of_keys() * key_value_width();
  }
  bool operator==(const AttentionHeads&) const = default;
};

}  // namespace trireme
