// Which rows of a set, and which tokens of them, a rank evaluates.
#pragma once

#include "trireme/comm/mesh.h"
#include "trireme/data/row_reader.h"

namespace trireme {

// `rows` for this rank of the mesh.
LoaderOptions rows_of_rank(LoaderOptions rows, const Mesh& mesh);

}  // namespace trireme
