#include "trireme/cli/info.h"

#include <cmath>
#include <iostream>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/AllocatorConfig.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include "trireme/base/cpu_cores.h"
#include "trireme/base/error.h"
#include "trireme/cli/process_options.h"
#include "trireme/device/processor.h"
#include "trireme/kernels/local_attention.h"
#include "trireme/measure/matmul_rate.h"

namespace trireme {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The kernel that `auto` selects, or why there is none.
std::string kernel_in_use(at::Device device, at::ScalarType dtype) {
  try {
    return make_local_attention(AttentionKernel::automatic, device, dtype)->name();
  } catch (const ConfigError& error) {
    return cat("none: ", error.what());
  }
}

OrderedJson attention_of(at::Device device) {
  return {{"fp32", kernel_in_use(device, at::kFloat)}, {"bf16", kernel_in_use(device, at::kBFloat16)}};
}

OrderedJson collect(bool measure) {
  OrderedJson info;
  info["version"] = TRIREME_VERSION;
  info["libtorch"] = TORCH_VERSION;
  info["build"] = {{"cuda", TRIREME_BUILT_WITH_CUDA != 0}, {"compiler", __VERSION__}};
  OrderedJson cpu = {{"device", "cpu"},
                     {"model", cpu_model_name()},
                     {"cores", cpu_cores()},
                     {"threads", at::get_num_threads()},
                     {"vector_instructions", at::get_cpu_capability()},
                     {"bf16_matmul_instructions", cpu_has_bf16_matmul()},
                     {"attention", attention_of(at::kCPU)},
                     {"transport", "memory, gloo"}};
  if (measure) {
    cpu["matmul_gflops_fp32"] = std::round(best_matmul_rate(at::kCPU, at::kFloat, 0.1) / 1e9);
    if (cpu_has_bf16_matmul())
      cpu["matmul_gflops_bf16"] = std::round(best_matmul_rate(at::kCPU, at::kBFloat16, 0.1) / 1e9);
  }
  info["devices"] = OrderedJson::array({cpu});
  const int gpus = cuda_devices();
  for (int i = 0; i < gpus; ++i) {
    const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(i));
    info["devices"].push_back(
        {{"device", device.str()}, {"attention", attention_of(device)}, {"transport", "nccl"}});
  }
  info["gpu_allocator"] = c10::CachingAllocator::getAllocatorSettings();
  OrderedJson transports = {{"memory", "ranks are processes of one machine that read each other, on the CPU"},
                            {"gloo", "ranks are processes, on the CPU"},
                            {"threads", "ranks are threads of one process"}};
  if (TRIREME_BUILT_WITH_CUDA != 0) transports["nccl"] = "ranks are processes, one GPU each";
  info["transports"] = transports;
  return info;
}

void print_text(const OrderedJson& value, const std::string& indent) {
  for (const auto& [key, item] : value.items()) {
    if (item.is_object()) {
      std::cout << indent << key << "\n";
      print_text(item, indent + "  ");
    } else if (item.is_array()) {
      for (const OrderedJson& part : item) {
        std::cout << indent << key << "\n";
        print_text(part, indent + "  ");
      }
    } else {
      std::cout << indent << key << ": " << (item.is_string() ? item.get<std::string>() : item.dump())
                << "\n";
    }
  }
}

}  // namespace

void InfoFlags::declare(OptionList& list) {
  list.flag("json", json, "print JSON");
  list.flag("measure", measure, "measure the matmul rate of the CPU (seconds)");
}

int run_info(const std::vector<std::string>& arguments) {
  InfoFlags flags;
  OptionParser parser("info", "Versions, devices, and the kernels and transports in use on them.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  const OrderedJson info = collect(flags.measure);
  if (flags.json)
    std::cout << info.dump(1) << "\n";
  else
    print_text(info, "");
  std::cout << std::flush;
  return 0;
}

}  // namespace trireme
