#include "trireme/comm/mesh.h"

#include <utility>

#include "trireme/base/error.h"

namespace trireme {
namespace {

void refuse(const char* axis, int degree, const char* instead) {
  if (degree == 1) return;
  throw ConfigError(cat("the mesh axis '", axis, "' was asked for with degree ", degree,
                        "; this version has the axes dp (data parallel) and ulysses: ", instead));
}

}  // namespace

Mesh make_mesh(World& world, const MeshShape& shape) {
  refuse("ring", shape.ring,
         "leave ring at 1 and split the sequence with ulysses (up to the number of query heads)");
  refuse("tensor", shape.tensor, "leave tensor at 1");
  refuse("pipeline", shape.pipeline, "leave pipeline at 1");
  const int size = world.size();
  if (shape.ulysses < 1 || size % shape.ulysses != 0) {
    std::string divisors;
    for (int degree = 1; degree <= size; ++degree) {
      if (size % degree == 0) divisors += cat(degree == 1 ? "" : ", ", degree);
    }
    throw ConfigError(cat("ulysses degree ", shape.ulysses, " does not divide the number of ranks, ", size,
                          "; it may be ", divisors));
  }
  const int sp_size = shape.ulysses;
  Mesh mesh;
  mesh.dp_size = size / sp_size;
  mesh.dp_index = world.rank() / sp_size;

  // Neighbouring ranks, which launchers put on the same machine, hold one sample: their exchange is the
  // heavier one.
  std::vector<int> everyone;
  std::vector<std::vector<int>> samples(mesh.dp_size), slices(sp_size);
  for (int rank = 0; rank < size; ++rank) {
    everyone.push_back(rank);
    samples[rank / sp_size].push_back(rank);
    slices[rank % sp_size].push_back(rank);
  }
  mesh.all = world.make_group("all", {everyone});
  mesh.sp = world.make_group("sp", samples);
  mesh.ulysses = world.make_group("ulysses", samples);
  mesh.dp = world.make_group("dp", slices);
  return mesh;
}

}  // namespace trireme
