#include "trireme/eval/rank_rows.h"

namespace trireme {

LoaderOptions rows_of_rank(LoaderOptions rows, const Mesh& mesh) {
  rows.dp_size = mesh.dp_size;
  rows.dp_index = mesh.dp_index;
  rows.ulysses = mesh.ulysses->size();
  rows.ring = mesh.ring->size();
  rows.sp_rank = mesh.sp->rank();
  return rows;
}

}  // namespace trireme
