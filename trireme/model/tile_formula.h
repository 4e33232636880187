// Which formula says what a family's layers and head hold inside a tile of tokens (forecast/tile_bytes.h).
#pragma once

namespace trireme {

enum class TileFormula {
  widest,   // more than the others, term by term: of a family that has no formula yet
  decoder,  // RMS norm, a gated MLP
  encoder,  // layer norm after each part, a plain MLP
};

}  // namespace trireme
