// <A x, y> = <x, A' y> in fp64, over all ranks, for each collective and the adjoint that collectives.h names.
#include <gtest/gtest.h>

#include "trireme/base/sum_of.h"
#include "trireme/comm/collectives.h"
#include "trireme/comm/thread_world.h"

namespace trireme {
namespace {

constexpr int64_t kColumns = 4;

// A different, fixed stream for each rank and purpose.
at::Tensor noise(int64_t rows, int rank, int purpose) {
  return at::arange(rows * kColumns, at::kDouble)
      .add_(1)
      .mul_(12.9898 + rank * 3.1 + purpose * 7.7)
      .sin_()
      .view({rows, kColumns});
}

class Adjoint : public ::testing::TestWithParam<int> {
 protected:
  struct Products {
    double forward = 0;  // this rank's part of <A x, y>
    double adjoint = 0;  // this rank's part of <x, A' y>
  };

  // `body` gives one rank's parts; their sums over ranks must agree.
  void expect_adjoint(const std::function<Products(Group&)>& body) const {
    std::vector<Products> parts(GetParam());
    run_ranks_as_threads(GetParam(), [&](World& world) {
      const auto group = world.make_group("test", {world.identity().all_ranks()});
      parts[world.rank()] = body(*group);
    });
    Products sum;
    for (const Products& part : parts) {
      sum.forward += part.forward;
      sum.adjoint += part.adjoint;
    }
    EXPECT_GT(std::abs(sum.forward), 1e-3);  // zero on both sides would prove nothing
    EXPECT_NEAR(sum.forward, sum.adjoint, 1e-12 * std::abs(sum.forward) + 1e-12);
  }

  static double dot(const at::Tensor& a, const at::Tensor& b) { return a.mul(b).sum().item<double>(); }
  static std::vector<int64_t> uneven_rows(int ranks) {
    std::vector<int64_t> rows(ranks);
    for (int rank = 0; rank < ranks; ++rank) rows[rank] = rank == 1 ? 0 : rank + 2;
    return rows;
  }
};

TEST_P(Adjoint, of_all_to_all_is_all_to_all_with_the_splits_swapped) {
  expect_adjoint([](Group& group) {
    std::vector<int64_t> send, receive;
    for (int peer = 0; peer < group.size(); ++peer) {
      send.push_back((group.rank() * 2 + peer * 3 + 1) % 4);
      receive.push_back((peer * 2 + group.rank() * 3 + 1) % 4);
    }
    const at::Tensor x = noise(sum_of(send), group.rank(), 0), y = noise(sum_of(receive), group.rank(), 1);
    return Products{dot(all_to_all(group, x, send, receive), y), dot(x, all_to_all(group, y, receive, send))};
  });
}

// What a rank received at hop t of a ring goes back the same way, hop by hop.
TEST_P(Adjoint, of_a_hop_round_the_ring_is_a_hop_the_other_way_round) {
  expect_adjoint([](Group& group) {
    const int P = group.size(), me = group.rank();
    const auto rows = uneven_rows(P);
    std::vector<int64_t> to_next(P, 0), from_before(P, 0);
    to_next[(me + 1) % P] = rows[me];
    from_before[(me + P - 1) % P] = rows[(me + P - 1) % P];
    const at::Tensor x = noise(sum_of(to_next), me, 0), y = noise(sum_of(from_before), me, 1);
    PendingRows there = begin_all_to_all(group, x, to_next, from_before);
    PendingRows back = begin_all_to_all(group, y, from_before, to_next);
    return Products{dot(there.wait(), y), dot(x, back.wait())};
  });
}

TEST_P(Adjoint, of_all_gather_is_reduce_scatter_sum_and_the_other_way_round) {
  expect_adjoint([](Group& group) {
    const auto rows = uneven_rows(group.size());
    const at::Tensor x = noise(rows[group.rank()], group.rank(), 0), y = noise(sum_of(rows), group.rank(), 1);
    return Products{dot(all_gather(group, x, rows), y), dot(x, reduce_scatter_sum(group, y, rows))};
  });
}

TEST_P(Adjoint, of_all_reduce_sum_is_itself) {
  for (const int64_t rows : {3, 2000}) {
    expect_adjoint([rows](Group& group) {
      const at::Tensor x = noise(rows, group.rank(), 0), y = noise(rows, group.rank(), 1);
      at::Tensor sum_x = x.clone(), sum_y = y.clone();
      all_reduce_sum(group, sum_x);
      all_reduce_sum(group, sum_y);
      return Products{dot(sum_x, y), dot(x, sum_y)};
    });
  }
}

INSTANTIATE_TEST_SUITE_P(P, Adjoint, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace trireme
