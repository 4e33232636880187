// The activations of an MLP on a GPU (activation_kernel.cu): one launch each, every value read and written
// once, computed in fp32.
//
//   SwiGLU, GeGLU      gate_up [T, 2I] -> act [T, I]                            3 values an element of act
//   their backward     dact, gate_up -> act, and d(gate_up) over gate_up        6
//   of the exact GELU  dact, x -> d(x) over dact, act over x                    4
//
// `stream`: a cudaStream_t of the current device, which the rows are of. The caller asks cudaGetLastError.
#pragma once

#include "trireme/kernels/glu_gate.h"
#include "trireme/kernels/gpu_rows.h"

namespace trireme {

struct ActivationSizes {
  GpuNumber number = GpuNumber::fp32;  // of all tensors
  int64_t rows = 0, width = 0;         // T, and I of act
};

void launch_glu(GluGate gate, const ActivationSizes& sizes, const GpuRows& gate_up, const GpuRows& act,
                void* stream);

void launch_glu_backward(GluGate gate, const ActivationSizes& sizes, const GpuRows& dact,
                         const GpuRows& gate_up, const GpuRows& act, void* stream);

void launch_exact_gelu_backward(const ActivationSizes& sizes, const GpuRows& dact, const GpuRows& x,
                                void* stream);

}  // namespace trireme
