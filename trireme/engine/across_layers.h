// What passes between the parts of a model beside x, of one micro-batch (Gemma 4 E2B and E4B): each layer is told
// something of its own (model/layer_inputs.h), and keys and values of a layer serve later ones.
//
//   forward    inputs_LRP -> layers;  layer that gives keys: k, v -> kv_RKD -> layers that share them
//   backward   layer: d(input) over its rows of inputs_LRP
//              layers that share keys: d(k, v) added up in fp32 -> the layer that gave them
#pragma once

#include <map>

#include <ATen/ATen.h>

namespace trireme {

struct AcrossLayers {
  struct Keys {
    at::Tensor kv_RKD;   // [R, 2K, D], of R tokens of this rank: normed and rotated keys, then values
    at::Tensor dkv_RKD;  // fp32; undefined: nothing was added
  };
  at::Tensor inputs_LRP;         // [L, R, P]; undefined where the model has none
  at::Tensor x_RM;               // that they were made of; undefined where there is no backward of them
  std::map<int64_t, Keys> keys;  // by the layer that gives them, while a pass needs them
};

}  // namespace trireme
