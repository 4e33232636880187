#include "trireme/comm/mesh.h"

#include "trireme/base/error.h"
#include "trireme/comm/backend_library.h"
#include "trireme/comm/collectives.h"

namespace trireme {
namespace {

// The valid degrees as ulysses x ring: "1 x 4, 2 x 2, ...".
std::string pairs_within(int size) {
  std::string text;
  for (int sp = 1; sp <= size; ++sp) {
    if (size % sp != 0) continue;
    for (int ulysses = sp; ulysses >= 1; --ulysses)
      if (sp % ulysses == 0) text += cat(text.empty() ? "" : ", ", ulysses, " x ", sp / ulysses);
  }
  return text;
}

}  // namespace

void check_degrees(int64_t ulysses, int64_t ring, int ranks) {
  if (ulysses >= 1 && ring >= 1 && ulysses <= ranks && ring <= ranks && ranks % (ulysses * ring) == 0) return;
  throw ConfigError(cat("ulysses degree ", ulysses, ring == 1 ? std::string() : cat(" x ring degree ", ring),
                        " does not divide the number of ranks, ", ranks, "; ulysses x ring may be ",
                        pairs_within(ranks)));
}

Mesh make_mesh(World& world, const SequenceDegrees& shape, const MeshExchanges& exchanges) {
  const int size = world.size(), U = shape.ulysses, R = shape.ring;
  check_degrees(U, R, size);
  const int sp_size = U * R;
  Mesh mesh;
  mesh.exchanges = exchanges;
  mesh.dp_size = size / sp_size;
  mesh.dp_index = world.rank() / sp_size;

  // Neighbouring ranks, which launchers put on the same machine, hold one sample. The nearest of them trade
  // heads, because that exchange is heavier.
  std::vector<std::vector<int>> samples(mesh.dp_size);
  std::vector<std::vector<int>> heads(size / U), rings(mesh.dp_size * U);
  for (int rank = 0; rank < size; ++rank) {
    samples[rank / sp_size].push_back(rank);
    heads[rank / U].push_back(rank);
    rings[rank / sp_size * U + rank % U].push_back(rank);
  }
  mesh.all = world.make_group("all", {world.identity().all_ranks()});
  mesh.ulysses = world.make_group("ulysses", heads, Queue::exchange);
  mesh.ring = world.make_group("ring", rings, Queue::exchange);
  // If one axis covers the whole sample, `sp` shares the backend of that axis.
  const bool by_an_axis = U == 1 || R == 1;
  mesh.sp =
      world.make_group("sp", samples, by_an_axis || exchanges.columns ? Queue::exchange : Queue::beside);
  return mesh;
}

void connect_exchanges(const Mesh& mesh, at::Device device) {
  const auto byte_rows = [&](int64_t rows) { return at::zeros({rows}, at::device(device).dtype(at::kByte)); };
  const auto is_connected_late = [](const Group& group) {
    return !group.is_alone() && library_of(group.backend()) == BackendLibrary::nccl;
  };
  const auto connect_all_pairs = [&](Group& group) {
    if (!is_connected_late(group)) return;
    const std::vector<int64_t> to_each(static_cast<size_t>(group.size()), 1);
    all_to_all(group, byte_rows(group.size()), to_each, to_each);
  };
  connect_all_pairs(*mesh.ulysses);
  if (mesh.exchanges.columns) connect_all_pairs(*mesh.sp);
  if (mesh.exchanges.blocks_of_sums) connect_all_pairs(*mesh.all);
  if (mesh.exchanges.gathered_keys)
    connect_all_pairs(*mesh.ring);
  else if (is_connected_late(*mesh.ring))
    begin_pass_on(*mesh.ring, byte_rows(1), 1, 1).wait();
}

}  // namespace trireme
