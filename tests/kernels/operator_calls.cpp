#include "tests/kernels/operator_calls.h"

#include <fstream>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "trireme/base/environment.h"

namespace trireme_test {

namespace {

using Json = nlohmann::ordered_json;

struct Calls {
  std::map<std::string, int64_t> counts;
  std::map<std::string, std::set<std::vector<int64_t>>> query_sizes;
  std::map<const void*, at::Tensor> segments;
  std::set<std::string> lines;
};

Calls& calls() {
  static Calls all;
  return all;
}

Json described(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return nullptr;
    return {{"sizes", tensor.sizes().vec()},
            {"strides", tensor.strides().vec()},
            {"dtype", c10::toString(tensor.scalar_type())}};
  }
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  return nullptr;
}

}  // namespace

void note_call(const std::string& name, const OperatorArguments& arguments,
               const std::vector<c10::IValue>& returns) {
  ++calls().counts[name];
  for (const auto& [argument, value] : arguments)
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kInt)
      calls().segments.emplace(value.toTensor().const_data_ptr(), value.toTensor());
  for (const auto& [argument, value] : arguments)
    if (argument == std::string("query")) calls().query_sizes[name].insert(value.toTensor().sizes().vec());
  const auto path = trireme::environment("TRIREME_OPERATOR_CALLS");
  if (!path) return;
  Json line{{"operator", name}, {"arguments", Json::object()}, {"returns", Json::array()}};
  for (const auto& [argument, value] : arguments) line["arguments"][argument] = described(value);
  for (const c10::IValue& value : returns) line["returns"].push_back(described(value));
  if (calls().lines.insert(line.dump()).second) std::ofstream(*path, std::ios::app) << line.dump() << '\n';
}

int64_t calls_of(const std::string& name) {
  return calls().counts[name];
}

std::set<std::vector<int64_t>> query_sizes_of(const std::string& name) {
  return calls().query_sizes[name];
}

int64_t distinct_segments() {
  return static_cast<int64_t>(calls().segments.size());
}

}  // namespace trireme_test
