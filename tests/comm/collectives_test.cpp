// What each collective gives, for P in 1, 2, 3, 4, on the in-process backend and on Gloo. The oracles know
// every rank's input (a formula of rank and index) and compute the result with plain loops.
#include "trireme/comm/collectives.h"

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/sum_of.h"

#include "tests/support/ranks.h"

namespace trireme::collectives_test {
namespace {

using testing::Backend;
using testing::run_ranks;

constexpr int64_t kColumns = 3;

class Collectives : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  int ranks() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(Group&)>& body) const {
    run_ranks(std::get<0>(GetParam()), ranks(),
              [&](World& world) { body(*world.make_group("test", {world.identity().all_ranks()})); });
  }
};

// Small whole numbers, so that every dtype holds them and their sums exactly.
double value(int rank, int64_t row, int64_t column) {
  return static_cast<double>((rank * 7 + row * 3 + column) % 23) - 5;
}

at::Tensor rows_of_rank(int rank, int64_t rows, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({rows, kColumns}, at::kDouble);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) tensor[row][column].fill_(value(rank, row, column));
  }
  return tensor.to(dtype);
}

double at_index(const at::Tensor& tensor, int64_t row, int64_t column) {
  return tensor[row][column].to(at::kDouble).item<double>();
}

// Rows that rank `from` sends to rank `to`: uneven, some zero.
int64_t split(int from, int to) {
  return (from * 2 + to * 3 + 1) % 4;
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                            at::kLong,  at::kInt,    at::kByte};

TEST_P(Collectives, all_to_all_trades_uneven_and_empty_blocks_in_rank_order) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    std::vector<int64_t> send, receive;
    for (int peer = 0; peer < P; ++peer) {
      send.push_back(split(me, peer));
      receive.push_back(split(peer, me));
    }
    for (const auto dtype : kTypes) {
      if (dtype == at::kByte) continue;  // holds no negative numbers
      const at::Tensor got = all_to_all(group, rows_of_rank(me, sum_of(send), dtype), send, receive);
      ASSERT_EQ(got.scalar_type(), dtype);
      int64_t row = 0;
      for (int peer = 0; peer < P; ++peer) {
        int64_t from = 0;
        for (int before = 0; before < me; ++before) from += split(peer, before);
        for (int64_t i = 0; i < split(peer, me); ++i, ++row) {
          for (int64_t column = 0; column < kColumns; ++column) {
            EXPECT_EQ(at_index(got, row, column), value(peer, from + i, column)) << dtype;
          }
        }
      }
      EXPECT_EQ(row, got.size(0));
    }
  });
}

TEST_P(Collectives, begun_all_to_alls_give_what_waiting_ones_give_in_the_order_in_which_they_were_begun) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    // Round i trades other amounts; round 2 nothing at all.
    const auto splits = [&](int round, bool sends) {
      std::vector<int64_t> rows(P);
      for (int peer = 0; peer < P; ++peer)
        rows[peer] = round == 2 ? 0 : (sends ? split(me, peer) : split(peer, me)) * (round + 1);
      return rows;
    };
    std::vector<at::Tensor> inputs;
    inputs.reserve(4);
    for (int round = 0; round < 4; ++round)
      inputs.push_back(rows_of_rank(me + 10 * round, sum_of(splits(round, true)), at::kFloat));
    std::vector<PendingRows> under_way;
    under_way.reserve(4);
    for (int round = 0; round < 4; ++round)
      under_way.push_back(begin_all_to_all(group, inputs[round], splits(round, true), splits(round, false)));
    for (int round = 0; round < 4; ++round) {
      const at::Tensor got = under_way[round].wait();
      EXPECT_TRUE(at::equal(got, all_to_all(group, inputs[round], splits(round, true), splits(round, false))))
          << "round " << round;
    }
  });
}

TEST_P(Collectives, pass_on_brings_every_block_past_every_rank) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    const auto rows_of = [](int owner) { return owner == 1 ? int64_t{0} : int64_t{owner} + 2; };
    at::Tensor block = rows_of_rank(me, rows_of(me), at::kBFloat16);
    for (int hop = 0; hop < P; ++hop) {
      const int owner = (me + P - hop) % P, next_owner = (owner + P - 1) % P;
      EXPECT_TRUE(at::equal(block, rows_of_rank(owner, rows_of(owner), at::kBFloat16)));
      block = begin_pass_on(group, block, rows_of(owner), rows_of(next_owner)).wait();
    }
    EXPECT_TRUE(at::equal(block, rows_of_rank(me, rows_of(me), at::kBFloat16)));
  });
}

TEST_P(Collectives, a_begun_all_to_all_that_is_dropped_leaves_the_group_usable_and_is_counted_once) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    const std::vector<int64_t> one(P, 1);
    const at::Tensor input = rows_of_rank(me, P, at::kFloat);
    { const PendingRows dropped = begin_all_to_all(group, input, one, one); }
    PendingRows kept = begin_all_to_all(group, input, one, one);
    const at::Tensor got = kept.wait();
    for (int peer = 0; peer < P; ++peer) EXPECT_EQ(at_index(got, peer, 1), value(peer, me, 1));
    EXPECT_THROW(kept.wait(), InternalError);
    if (P == 1) {
      EXPECT_TRUE(group.traffic().empty());
      return;
    }
    EXPECT_EQ(group.traffic().at("all_to_all").calls, 2);
    EXPECT_EQ(group.traffic().at("all_to_all").sent_bytes, 2 * (P - 1) * kColumns * 4);
  });
}

TEST_P(Collectives, all_to_all_of_nothing_at_all_gives_nothing) {
  run([&](Group& group) {
    const std::vector<int64_t> none(group.size(), 0);
    EXPECT_EQ(all_to_all(group, at::empty({0, 5}), none, none).sizes(), at::IntArrayRef({0, 5}));
    const std::vector<int64_t> one(group.size(), 1);
    EXPECT_EQ(all_to_all(group, at::empty({group.size(), 0}), one, one).sizes(),
              at::IntArrayRef({group.size(), 0}));
  });
}

TEST_P(Collectives, all_to_all_where_one_rank_holds_everything) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank(), last = P - 1;
    std::vector<int64_t> send(P, 0), receive(P, 0);
    if (me == last) send.assign(P, 2);
    receive[last] = 2;
    const at::Tensor got =
        all_to_all(group, rows_of_rank(me, me == last ? 2 * P : 0, at::kFloat), send, receive);
    ASSERT_EQ(got.size(0), 2);
    EXPECT_EQ(at_index(got, 1, 2), value(last, 2 * me + 1, 2));
  });
}

TEST_P(Collectives, all_gather_concatenates_rows_even_uneven_or_empty) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    std::vector<int64_t> uneven(P);
    for (int rank = 0; rank < P; ++rank) uneven[rank] = rank % 3;
    const std::vector<std::vector<int64_t>> cases = {std::vector<int64_t>(P, 2), std::vector<int64_t>(P, 0),
                                                     uneven};
    for (const auto& rows : cases) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        const at::Tensor got = all_gather(group, rows_of_rank(me, rows[me], dtype), rows);
        int64_t row = 0;
        for (int peer = 0; peer < P; ++peer) {
          for (int64_t i = 0; i < rows[peer]; ++i, ++row) {
            EXPECT_EQ(at_index(got, row, 1), value(peer, i, 1)) << "rank " << peer << " row " << i;
          }
        }
        EXPECT_EQ(row, got.size(0));
      }
    }
  });
}

// Ranks have their rows in it before.
TEST_P(Collectives, all_gather_fills_the_rest_of_memory_that_its_input_is_a_part_of) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    for (const bool even : {true, false}) {
      std::vector<int64_t> rows(P);
      int64_t all = 0, mine = 0;
      for (int rank = 0; rank < P; ++rank) {
        rows[rank] = even ? 2 : rank % 3;
        if (rank < me) mine += rows[rank];
        all += rows[rank];
      }
      at::Tensor whole = at::full({all, kColumns}, -99.0);
      const at::Tensor part = whole.narrow(0, mine, rows[me]);
      part.copy_(rows_of_rank(me, rows[me], at::kFloat));
      const at::Tensor got = all_gather(group, part, rows, whole);
      EXPECT_EQ(got.data_ptr(), whole.data_ptr());
      int64_t row = 0;
      for (int peer = 0; peer < P; ++peer)
        for (int64_t i = 0; i < rows[peer]; ++i, ++row)
          EXPECT_EQ(at_index(whole, row, 1), value(peer, i, 1)) << "rank " << peer << " row " << i;
    }
  });
}

TEST_P(Collectives, reduce_scatter_gives_each_rank_the_sum_of_its_rows) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    for (const int64_t step : {0, 1, 2}) {  // even, uneven, uneven with an empty share
      std::vector<int64_t> rows;
      int64_t total = 0, begin = 0;
      for (int rank = 0; rank < P; ++rank) {
        rows.push_back(step == 0 ? 2 : step * rank);
        if (rank == me) begin = total;
        total += rows.back();
      }
      for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
        const at::Tensor got = reduce_scatter_sum(group, rows_of_rank(me, total, dtype), rows);
        ASSERT_EQ(got.scalar_type(), dtype);
        ASSERT_EQ(got.size(0), rows[me]);
        for (int64_t row = 0; row < rows[me]; ++row) {
          double sum = 0;
          for (int peer = 0; peer < P; ++peer) sum += value(peer, begin + row, 2);
          EXPECT_EQ(at_index(got, row, 2), sum);
        }
      }
    }
  });
}

TEST_P(Collectives, reduce_scatter_can_put_the_sum_where_its_input_has_this_rank_s_rows) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    std::vector<int64_t> rows;
    int64_t total = 0, begin = 0;
    for (int rank = 0; rank < P; ++rank) {
      rows.push_back(rank % 3 + 1);
      if (rank == me) begin = total;
      total += rows.back();
    }
    const at::Tensor input = rows_of_rank(me, total, at::kFloat);
    const at::Tensor own = input.narrow(0, begin, rows[me]), before = input.clone();
    const at::Tensor got = begin_reduce_scatter_sum(group, input, rows, std::nullopt, own).wait();
    EXPECT_EQ(got.data_ptr(), own.data_ptr());
    for (int64_t row = 0; row < total; ++row) {
      const bool own_row = row >= begin && row < begin + rows[me];
      EXPECT_TRUE(own_row || at::equal(input[row], before[row])) << "row " << row << " is another rank's";
    }
    for (int64_t row = 0; row < rows[me]; ++row) {
      double sum = 0;
      for (int peer = 0; peer < P; ++peer) sum += value(peer, begin + row, 2);
      EXPECT_EQ(at_index(own, row, 2), sum);
    }
  });
}

TEST_P(Collectives, reduce_scatter_of_bf16_can_give_fp32_that_was_never_rounded) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    // 256 + 1 + 1 + ...: bf16 would lose each 1.
    const at::Tensor mine = at::full({P, 4}, me == 0 ? 256.0 : 1.0, at::kBFloat16);
    const at::Tensor got = reduce_scatter_sum(group, mine, std::vector<int64_t>(P, 1), at::kFloat);
    ASSERT_EQ(got.scalar_type(), at::kFloat);
    EXPECT_EQ(got[0][3].item<float>(), 256.0F + static_cast<float>(P - 1));
  });
}

TEST_P(Collectives, all_reduce_sum_is_the_sum_in_rank_order_with_the_same_bits_everywhere) {
  for (const int64_t elements : {1, 7, 5000, 300001}) {  // one round and two
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      std::vector<at::Tensor> inputs, results(ranks());
      for (int rank = 0; rank < ranks(); ++rank) {
        at::Tensor noise = at::arange(elements, at::kDouble).mul_(0.37 + rank).sin_().mul_(1e3);
        inputs.push_back(noise.to(dtype));
      }
      run([&](Group& group) {
        at::Tensor mine = inputs[group.rank()].clone();
        all_reduce_sum(group, mine);
        results[group.rank()] = mine;
      });
      at::Tensor expected = inputs[0].to(at::kFloat, false, true);
      for (int rank = 1; rank < ranks(); ++rank) expected.add_(inputs[rank].to(at::kFloat));
      for (const at::Tensor& result : results)
        EXPECT_TRUE(at::equal(result, expected.to(dtype))) << elements << dtype;
    }
  }
}

TEST_P(Collectives, all_reduce_keeps_the_shape_and_takes_scalars) {
  run([&](Group& group) {
    at::Tensor scalar = at::scalar_tensor(group.rank() + 1.0, at::kDouble);
    all_reduce_sum(group, scalar);
    EXPECT_EQ(scalar.item<double>(), group.size() * (group.size() + 1) / 2.0);
    at::Tensor nothing = at::empty({0, 4});
    all_reduce_sum(group, nothing);
    EXPECT_EQ(nothing.sizes(), at::IntArrayRef({0, 4}));
  });
}

TEST_P(Collectives, all_reduce_max_is_the_largest_and_a_NaN_wins) {
  run([&](Group& group) {
    at::Tensor tensor = at::full({3}, group.rank(), at::kFloat);
    if (group.rank() == 0) tensor[1] = std::nan("");
    all_reduce_max(group, tensor);
    EXPECT_EQ(tensor[0].item<float>(), static_cast<float>(group.size() - 1));
    EXPECT_TRUE(std::isnan(tensor[1].item<float>()));
    at::Tensor count = at::full({1}, 10 - group.rank(), at::kLong);
    all_reduce_max(group, count);
    EXPECT_EQ(count.item<int64_t>(), 10);
  });
}

TEST_P(Collectives, broadcast_brings_the_root_s_values_everywhere) {
  run([&](Group& group) {
    for (int root = 0; root < group.size(); ++root) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
        at::Tensor tensor = at::full({2, 3}, group.rank() == root ? 1 : 0).to(dtype);
        broadcast(group, tensor, root);
        EXPECT_TRUE(tensor.eq(1).all().item<bool>());
      }
    }
    barrier(group);
  });
}

TEST_P(Collectives, traffic_is_what_travels_to_others) {
  run([&](Group& group) {
    const int P = group.size(), me = group.rank();
    const std::vector<int64_t> two(P, 2);
    all_to_all(group, at::zeros({2 * P, 5}), two, two);
    all_gather(group, at::zeros({2, 5}), two);
    reduce_scatter_sum(group, at::zeros({2 * P, 5}), two);
    at::Tensor large = at::zeros({6000 * P});
    all_reduce_sum(group, large);
    broadcast(group, large, 0);
    if (P == 1) {
      EXPECT_TRUE(group.traffic().empty());
      return;
    }
    EXPECT_EQ(group.traffic().at("all_to_all").sent_bytes, (P - 1) * 2 * 5 * 4);
    EXPECT_EQ(group.traffic().at("all_gather").sent_bytes, (P - 1) * 2 * 5 * 4);
    EXPECT_EQ(group.traffic().at("reduce_scatter_sum").sent_bytes, (P - 1) * 2 * 5 * 4);
    EXPECT_EQ(group.traffic().at("all_reduce_sum").sent_bytes, 2 * (P - 1) * 6000 * 4);
    EXPECT_EQ(group.traffic().at("broadcast").sent_bytes, me == 0 ? (P - 1) * 6000 * P * 4 : 0);
    EXPECT_EQ(group.traffic().at("all_to_all").calls, 1);
    group.reset_traffic();
    EXPECT_TRUE(group.traffic().empty());
  });
}

TEST_P(Collectives, wrong_splits_are_an_InternalError_before_anything_travels) {
  run([&](Group& group) {
    const std::vector<int64_t> one(group.size(), 1);
    EXPECT_THROW(all_to_all(group, at::zeros({group.size() + 1, 2}), one, one), InternalError);
    EXPECT_THROW(begin_all_to_all(group, at::zeros({group.size() + 1, 2}), one, one), InternalError);
    EXPECT_THROW(all_gather(group, at::zeros({2, 2}), one), InternalError);
    EXPECT_THROW(all_gather(group, at::zeros({1, 2}), std::vector<int64_t>(group.size() + 1, 1)),
                 InternalError);
    at::Tensor strided = at::zeros({4, 6}).t();
    EXPECT_THROW(all_reduce_sum(group, strided), InternalError);
  });
}

INSTANTIATE_TEST_SUITE_P(P, Collectives,
                         ::testing::Combine(::testing::Values(Backend::threads, Backend::gloo,
                                                              Backend::memory),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return testing::name_of(std::get<0>(info.param)) +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace trireme::collectives_test
