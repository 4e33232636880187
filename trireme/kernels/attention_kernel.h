// The kernels that --attention names. No torch here.
#pragma once

#include <cstdint>

#include "trireme/base/enum_names.h"
#include "trireme/base/error.h"

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

// Of a sample, that the reference kernel is for: it is the definition, with all scores in memory.
inline constexpr int64_t kMostByReference_tokens = 4096;

// Throws ConfigError: a kernel that caps no scores, of a model whose scores are capped, on CUDA. On the CPU all do.
inline void check_caps_scores(AttentionKernel kernel) {
  using enum AttentionKernel;
  if (kernel != automatic && kernel != tiles && kernel != reference)
    throw ConfigError(
        cat("--attention ", name_of(kernel),
            ": the model caps its scores (attn_logit_softcapping), which that kernel does not do on "
            "CUDA; use --attention auto"));
}

}  // namespace trireme
