// Weights in Hugging Face's form: a directory with config.json and *.safetensors (one file, or an index).
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/base/safetensors.h"
#include "trireme/model/model_layout.h"

namespace trireme {

// The parameters of a model in its files. Missing or mis-shaped tensors, truncated or corrupt files:
// DataError that names file and tensor.
class CheckpointReader {
 public:
  // `single`: as of SafetensorsSet.
  explicit CheckpointReader(const std::filesystem::path& model_dir, const char* single = kWeightsFile)
      : weights_(model_dir, single) {}
  // Every parameter of one unit into `flat` (fp32, or any float dtype: converted). Second names are not
  // looked at.
  void read_unit(const UnitSpec& unit, at::Tensor& flat) const;

  // The parameters of a unit as the files hold them: of UnitSpec::joined, where they do, in place of those
  // that make it. DataError where they hold both.
  std::vector<const ParameterSpec*> held_parameters(const UnitSpec& unit) const;
  // The tensor in which a file holds a parameter, of its shape and a float dtype.
  const SafetensorsEntry& stored(const ParameterSpec& spec) const;
  // The second tensor with the parameter's values, which must be equal; null where there is none. Throws
  // DataError where its shape or dtype differs.
  const SafetensorsEntry* second_stored(const ParameterSpec& spec, const ModelLayout& layout) const;
  // Names in the files that no unit of the layout asks for (second names of tied parameters and
  // ModelLayout::unread_names are not reported).
  std::vector<std::string> unused_names(const ModelLayout& layout) const;
  int64_t read_bytes() const { return weights_.read_bytes(); }  // so far, headers included

 private:
  // Under the name, or those that it has inside a model that reads images too; null when absent.
  const SafetensorsEntry* find(const std::string& name) const;

  SafetensorsSet weights_;
};

// Throws the DataError of names that unused_names found, if there are any: a tensor that no part of the model
// reads means that `config` and the weights tell of different models.
void refuse_unused(const std::vector<std::string>& names, const ModelLayout& layout,
                   const std::filesystem::path& model_dir, const char* config = "config.json");

// Of the values in a file. Throws DataError for what is no float.
at::ScalarType dtype_of(const SafetensorsEntry& stored);
// Throws the DataError of a value that is not finite; `element`: of the parameter, counted row by row.
[[noreturn]] void refuse_weight(const SafetensorsEntry& stored, const ParameterSpec& spec, int64_t element,
                                double value);
// Throws the DataError that says that the values of a second name differ.
[[noreturn]] void refuse_untied(const SafetensorsEntry& second, const ModelLayout& layout);

// Into a folder without a model: writes config.json, model-0000i-of-N.safetensors (of at most `shard_bytes`)
// with its index, or one model.safetensors, and copies the tokenizer files of `tokenizer_from` if not empty.
// `unit_flat(u)` gives unit u's fp32 values; it is asked for one unit at a time, in order. Loadable by
// from_pretrained of transformers' AutoModelForCausalLM (BERT: AutoModelForMaskedLM).
void write_checkpoint(const std::filesystem::path& out_dir, const ModelConfig& config,
                      const ModelLayout& layout, const std::function<at::Tensor(int unit)>& unit_flat,
                      at::ScalarType dtype, const std::filesystem::path& tokenizer_from,
                      int64_t shard_bytes = int64_t{5} << 30);

}  // namespace trireme
