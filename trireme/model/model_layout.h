// The model as a list of units (embedding, layers, final norm + head), each one flat buffer of parameters,
// which stores shard. A family writes a unit once, by UnitBuilder: from that list come the names in files,
// the tensors that the arithmetic multiplies, and the counts of parameters and FLOPs. The names are Hugging
// Face's. No torch here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/model/model_config.h"
#include "trireme/model/unit_numbers.h"

namespace trireme {

// Of fresh weights: as of their kind, matrix, norm or bias (initial_unit_values).
enum class InitialValues { of_kind, ones, decay };

struct ParameterSpec {
  std::string name;            // "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;  // as in the checkpoint
  int64_t offset = 0;          // elements from the start of the unit's flat buffer
  int64_t elements = 0;
  bool decays = true;  // weight decay skips norms, biases and other vectors
  // In exact arithmetic the gradient is zero, and what is computed is rounding: the bias of k without rotary
  // adds the same to all scores of a query, which softmax does not see.
  bool gradient_vanishes = false;
  InitialValues initial = InitialValues::of_kind;
  // A number of the model that is not trained: nothing is added to its gradient.
  bool stays = false;
  std::string other_name = {};    // under which a file may hold it instead
  std::string missing_hint = {};  // what the user can do about a file that lacks it
};

// A tensor as the arithmetic uses it: a vector, or a matrix of the rows of one parameter or of several, one
// below the other (q|k|v, gate|up), so that one product serves them.
struct TensorSpec {
  int64_t offset = 0;
  int64_t rows = 0;     // 0: this model does not have it
  int64_t columns = 0;  // 0: a vector
  // Of the matrices of a mixture: how many lie one below the other, and by how many a token is multiplied. Of a
  // table, of which a token has a row, by none.
  int64_t experts = 1, experts_per_token = 1;
};

struct UnitSpec {
  std::string name;  // "embedding", "layer.0", "head"
  std::vector<ParameterSpec> parameters;
  int64_t elements = 0;  // of the flat buffer, padding included (tensors start at multiples of 16 elements)
  std::vector<TensorSpec> tensors = {};  // by the family's slot
  // Tensors that a file may have in place of several parameters, which lie side by side and make it.
  std::vector<ParameterSpec> joined = {};
};

class UnitBuilder {
 public:
  struct Rows {
    std::string name;  // behind the prefix
    int64_t rows;
  };
  // `slots`: how many tensors the family's units of this kind have at most.
  UnitBuilder(std::string name, std::string prefix, size_t slots);

  void matrix(size_t slot, const std::vector<Rows>& parameters, int64_t columns);
  void table(size_t slot, const Rows& parameter, int64_t columns);
  // Vectors do not decay.
  void vector(size_t slot, const std::vector<Rows>& parameters) { matrix(slot, parameters, 0); }
  // The matrices of `experts` experts, by `experts_per_token` of which a token is multiplied. `joined`: the name
  // of a tensor [experts, rows, columns] that a file may have in their place, or null.
  void expert_matrices(size_t slot, const std::vector<Rows>& parameters, int64_t columns, int64_t experts,
                       int64_t experts_per_token, const char* joined);
  // NAME.weight and, in the next slot, NAME.bias.
  void linear(size_t slot, const std::string& name, int64_t rows, int64_t columns);
  void layer_norm(size_t slot, const std::string& name, int64_t width);
  // The last one that was added.
  ParameterSpec& last() { return unit_.parameters.back(); }
  UnitSpec finish();

 private:
  UnitSpec unit_;
  std::string prefix_;
};

// LoRA (lora.h): what is trained beside the model, whose units stay as they are.
struct AdaptedRows {
  int64_t first_row = 0, rows = 0;  // of the matrix, which are one parameter
  size_t b = 0;                     // Adapters::units: the tensor [rows, r]
  bool operator==(const AdaptedRows&) const = default;
};
struct AdaptedMatrix {
  size_t slot = 0;                     // the family's
  size_t a = 0;                        // Adapters::units: the tensor [r for each of `rows`, columns]
  std::vector<AdaptedRows> rows = {};  // in the order of the matrix
  bool operator==(const AdaptedMatrix&) const = default;
};
// A parameter that is trained whole (PEFT's modules_to_save): its tensor takes the place of the family's.
struct WholeTensor {
  size_t slot = 0;    // the family's
  size_t tensor = 0;  // among those of the adapters' unit
};
struct Adapters {
  // Of the model's units from `first_unit` on, each: the layers, and the embedding or the head where they hold
  // something that is trained whole. None: the model itself is trained.
  std::vector<UnitSpec> units = {};
  int first_unit = 0;
  std::vector<std::vector<AdaptedMatrix>> matrices = {};  // of each of these
  std::vector<std::vector<WholeTensor>> whole = {};       // of each of these
  int64_t rank = 0;                                       // r
  double scale = 0;
};

// The slots that every family's embedding and head have; its other slots come behind them.
enum EmbeddingSlot : size_t { kWords, kFamilyEmbeddingSlots };
enum HeadSlot : size_t { kOutputMatrix, kOutputBias, kFamilyHeadSlots };

// A second name under which a file may hold a parameter, with the same values.
struct TiedName {
  std::string name;
  std::string parameter;     // of a unit
  std::string differs_hint;  // what an error says where the values are not the same
};

struct ModelLayout {
  // By unit_numbers.h.
  std::vector<UnitSpec> units;
  bool layer_inputs = false;  // whether the second is of these
  bool tied = false;          // the head unit then lacks the output matrix and uses the embedding's
  bool embedding_read_backward = false;  // the embedding's backward needs its values, not its gradient alone
  std::vector<TiedName> tied_names = {};
  // What files of this kind may hold and this model does not have: names that contain one of these.
  std::vector<std::string> unread_names = {};
  // Parameters as other programs write them, which is not read: what their names contain, and what to do.
  std::vector<std::pair<std::string, std::string>> other_forms = {};
  int layer_unit(int64_t layer) const { return trireme::layer_unit(layer, layer_inputs); }
  int head_unit() const { return static_cast<int>(units.size()) - 1; }

  Adapters adapters = {};  // of LoRA; none: the units are trained

  bool adapted() const { return !adapters.units.empty(); }
  // What an optimizer steps, and a checkpoint holds: the units, or their adapters.
  const std::vector<UnitSpec>& trained() const { return adapted() ? adapters.units : units; }
  // The number among these of a unit, or of its adapters; none: it stays as it is.
  std::optional<int> trained_unit(int unit) const {
    const int number = unit - adapters.first_unit;
    return number >= 0 && number < std::ssize(trained()) ? std::optional(number) : std::nullopt;
  }
  // Whether the head's matrix has a gradient; tied, with the embedding.
  bool trains_output() const;

  int64_t parameter_count() const;  // all but adapters, tied embeddings counted once
  int64_t trained_parameter_count() const;
  // Of adapters, those of LoRA's matrices, of each of Adapters::units.
  std::vector<int64_t> lora_elements() const;
  // N of the FLOPs formula: embeddings excluded, head included, of experts those that one token goes to.
  int64_t matmul_parameter_count() const;
  // Of a token's products with them, forward and backward: 6 N, or 4 N + 6 (those of LoRA), as no gradient of
  // what stays is made, and 2 (the output matrix) where that is trained. Attention's scores are not counted.
  double flops_per_token() const;
};

// As the family of the config lays it out.
ModelLayout make_model_layout(const ModelConfig& config);

}  // namespace trireme
