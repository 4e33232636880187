// The kernels that --attention names. No torch here.
#pragma once

#include "trireme/base/enum_names.h"

namespace trireme {

// make_local_attention.cpp has a line for each.
enum class AttentionKernel { automatic, flash, cudnn, cudnn_packed, reference };
constexpr auto enum_names(AttentionKernel) {
  using enum AttentionKernel;
  return std::to_array<EnumName<AttentionKernel>>({{automatic, "auto"},
                                                   {flash, "flash"},
                                                   {cudnn, "cudnn"},
                                                   {cudnn_packed, "cudnn_packed"},
                                                   {reference, "reference"}});
}

}  // namespace trireme
