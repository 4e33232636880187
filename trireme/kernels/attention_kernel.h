// The kernels that --attention names. No torch here.
#pragma once

#include "trireme/base/enum_names.h"

namespace trireme {

// make_local_attention.cpp has a line for each.
enum class AttentionKernel { automatic, flash, flash4, cudnn, cudnn_packed, tiles, reference };
constexpr auto enum_names(AttentionKernel) {
  using enum AttentionKernel;
  return std::to_array<EnumName<AttentionKernel>>({{automatic, "auto"},
                                                   {flash, "flash"},
                                                   {flash4, "flash4"},
                                                   {cudnn, "cudnn"},
                                                   {cudnn_packed, "cudnn_packed"},
                                                   {tiles, "tiles"},
                                                   {reference, "reference"}});
}

// Those that know neither windows nor documents that share a sample.
constexpr bool takes_whole_samples_alone(AttentionKernel kernel) {
  return kernel == AttentionKernel::flash4 || kernel == AttentionKernel::cudnn;
}

// Those that cap scores on CUDA; on the CPU all do.
constexpr bool caps_scores(AttentionKernel kernel) {
  return kernel == AttentionKernel::automatic || kernel == AttentionKernel::tiles ||
         kernel == AttentionKernel::reference;
}

}  // namespace trireme
