// The units of a decoder as its layout writes them and its arithmetic reads them.
#pragma once

#include "trireme/model/model_layout.h"

namespace trireme::decoder {

enum LayerSlot : size_t {
  // [(H + 2K) D, M]; without v's rows where AttentionHeads::keys_are_values, without k's too where they are
  // shared, with a gate's behind each query's where it is gated. Of a DeltaNet q|k|v|b|a|z, or by key heads (DeltaProjections).
  kQkv,
  kQkvBias,           // [(H + 2K) D], as well
  kOut,               // [M, H D]; of a DeltaNet [M, V Dv]
  kOutBias,           // [M]
  kAttentionNorm,     // [M], of x before attention
  kQueryNorm,         // [D]
  kKeyNorm,           // [D]
  kAttentionOutNorm,  // [M], of what attention adds to x
  kMlpNorm,           // [M], of x1 before the MLP
  kRouter,            // [E, M], of a mixture of E experts
  kGateUp,            // [2 I, M], of each expert one below the other
  kGateUpBias,        // [2 I]
  kDown,              // [M, I], of each expert one below the other
  kDownBias,          // [M]
  kSharedGateUp,      // [2 Is, M], of the expert that every token has
  kSharedDown,        // [M, Is]
  kSharedGate,        // [1, M], whose sigmoid is the share that it counts by
  kSharedOutNorm,     // [M], of what it gives, beside the others' norms: of x1 before them, of their sum
  kExpertNorm,        // [M]
  kExpertOutNorm,     // [M]
  kRouterScale,       // [M], of the router's norm
  kExpertScale,       // [E], by which a token's weights are multiplied
  kMlpOutNorm,        // [M], of what the MLP adds to x1
  kConvolution,       // [2 K Dk + V Dv, taps], of a DeltaNet's q|k|v
  kDecay,             // [V], the logarithm of how fast its states decay
  kDecayBias,         // [V], added to a
  kGatedNorm,         // [Dv], of what it gives
  kInputGate,         // [P, M], of what a layer is told beside x (layer_input.h)
  kInputProjection,   // [M, P]
  kInputNorm,         // [M]
  kLayerScale,        // [1], by which y is multiplied; it is not trained
  kLayerSlots
};
// Of layers' inputs.
enum LayerInputsSlot : size_t {
  kInputWords,        // [V', L P]: a layer's columns are its own
  kInputsProjection,  // [L P, M]
  kInputsNorm,        // [P]
  kLayerInputsSlots
};
enum OwnHeadSlot : size_t { kFinalNorm = kFamilyHeadSlots, kHeadSlots };

}  // namespace trireme::decoder
