// What the forecast has to know of a device's kernels, from what the device is.
#pragma once

#include "trireme/forecast/forecast_inputs.h"
#include "trireme/forecast/precision.h"
#include "trireme/kernels/attention_kernel.h"

namespace trireme {

struct DeviceKernels {
  bool on_gpu = false;
  bool cuda = false;            // a GPU with CUDA's kernels; tests have another kind of device beside a CPU
  int threads = 1;              // of a CPU
  bool bf16_attention = false;  // a CPU's tiles of attention may be multiplied in bf16
  AttentionKernel attention = AttentionKernel::automatic;
  bool flash4 = false;                 // a GPU that runs FlashAttention-4's kernels (kernels/flash4_runner.h)
  bool ranks_read_each_other = false;  // threads of a process, or CPU ranks of one machine
  bool packed_documents = false;       // in samples: not with --packing concat, nor where each is one text
};

// `inputs` with the bytes of its elements set.
inline ForecastInputs with_device(ForecastInputs inputs, const DeviceKernels& device, Precision precision) {
  inputs.device_is_host = !device.on_gpu;
  inputs.bf16_values = precision == Precision::bf16 && inputs.tile_bytes == 2;
  inputs.adamw_kernel = device.cuda || !device.on_gpu;
  inputs.token_kernels = device.cuda;
  if (device.ranks_read_each_other)
    inputs.rank_sums = RankSums::while_reading;
  else if (device.cuda && inputs.reduce_bytes == kFloat_bytes)
    inputs.rank_sums = RankSums::by_library;
  inputs.packed = device.packed_documents;
  const bool reference = device.attention == AttentionKernel::reference;
  const bool automatic = device.attention == AttentionKernel::automatic;
  inputs.fused_on_gpu = device.on_gpu && !reference;
  inputs.score_tiles =
      device.cuda && !reference && (inputs.model.caps_scores || device.attention == AttentionKernel::tiles);
  const bool fused_on_cuda = device.cuda && !inputs.score_tiles;
  inputs.key_blocks = fused_on_cuda && precision != Precision::fp32 && !reference &&
                      device.attention != AttentionKernel::flash &&
                      device.attention != AttentionKernel::flash4;
  inputs.documents_alone = inputs.key_blocks && automatic && device.packed_documents;
  inputs.flash4 = fused_on_cuda && device.flash4 && precision == Precision::bf16 &&
                  (automatic || device.attention == AttentionKernel::flash4);
  inputs.packed_graphs = fused_on_cuda && device.attention == AttentionKernel::cudnn_packed;
  inputs.product_threads = !device.on_gpu && inputs.tile_bytes == 2 ? device.threads : 0;
  inputs.flash_threads = device.on_gpu || reference ? 0 : device.threads;
  inputs.flash_element_bytes = precision == Precision::bf16 && device.bf16_attention ? 2 : kFloat_bytes;
  return inputs;
}

}  // namespace trireme
