// What a call asks of cuDNN (attention_graph.h).
#include "trireme/kernels/attention_graph.h"

#include <set>

#include <gtest/gtest.h>

namespace trireme {
namespace {

GraphCall small_graph_call(GraphPass pass) {
  GraphCall call;
  call.pass = pass;
  call.query_heads = 6;
  call.kv_heads = 2;
  call.width = 64;
  call.band = {kUnbounded, 0};
  call.segments = 5;
  call.longest_q = 300;
  call.longest_k = 500;
  call.all_rows = 1000;
  call.all_keys = 2000;
  call.q = call.k = call.v = {640, 64};
  return call;
}

TEST(AttentionGraph, sizes_are_rounded_up_so_that_graphs_come_again) {
  std::set<int64_t> segments, rows;
  for (int64_t count = 1; count <= 131072; ++count) {
    EXPECT_GE(segments_of_graph(count), count);
    EXPECT_GE(rows_of_graph(count), count);
    EXPECT_LT(segments_of_graph(count), 2 * count);
    segments.insert(segments_of_graph(count));
    rows.insert(rows_of_graph(count));
  }
  EXPECT_EQ(segments.size(), 18);
  EXPECT_EQ(rows.size(), 11);
  GraphCall call = small_graph_call(GraphPass::backward), like = call;
  like.segments = 8;
  like.longest_q = 260;
  like.longest_k = 511;
  like.all_rows = 999;
  EXPECT_EQ(attention_graph(call), attention_graph(like));
}

TEST(AttentionGraph, whatever_changes_the_operation_is_another_graph) {
  const GraphCall call = small_graph_call(GraphPass::backward);
  const auto differs = [&](auto change) {
    GraphCall other = call;
    change(other);
    return attention_graph(other) != attention_graph(call);
  };
  EXPECT_TRUE(differs([](GraphCall& c) { c.element = GraphElement::fp16; }));
  EXPECT_TRUE(differs([](GraphCall& c) { c.band.left = 7; }));
  EXPECT_TRUE(differs([](GraphCall& c) { c.band.right = 1; }));
  EXPECT_TRUE(differs([](GraphCall& c) { c.scale = 2; }));
  EXPECT_TRUE(differs([](GraphCall& c) { c.segments = 9; }));
  EXPECT_TRUE(differs([](GraphCall& c) { c.longest_k = 513; }));
  EXPECT_TRUE(differs([](GraphCall& c) { c.all_rows = 1025; }));
  GraphCall forward = call, strided = call;
  strided.v.row = 648;
  EXPECT_EQ(attention_graph(call), attention_graph(strided));  // whose tensors are contiguous
  forward.pass = strided.pass = GraphPass::forward;
  EXPECT_NE(attention_graph(forward), attention_graph(strided));
  EXPECT_TRUE(differs([](GraphCall& c) { c.kv_heads = 3; }));
}

TEST(AttentionGraph, tensors_are_described_by_the_strides_that_they_have) {
  const AttentionGraph graph = attention_graph(small_graph_call(GraphPass::forward));
  const GraphTensor &q = graph.tensor(GraphRole::q), &k = graph.tensor(GraphRole::k),
                    &lse = graph.tensor(GraphRole::lse);
  EXPECT_EQ(q.sizes, (std::vector<int64_t>{8, 6, 512, 64}));
  EXPECT_EQ(q.strides, (std::vector<int64_t>{512 * 640, 64, 640, 1}));
  EXPECT_EQ(k.sizes, (std::vector<int64_t>{8, 2, 512, 64}));
  EXPECT_EQ(lse.sizes, (std::vector<int64_t>{8, 6, 512, 1}));
  EXPECT_EQ(lse.strides, (std::vector<int64_t>{512 * 6, 1, 6, 1}));
  EXPECT_EQ(lse.element, GraphElement::fp32);
  EXPECT_TRUE(lse.output && !q.output);
  // q; k and v; o; lse.
  EXPECT_EQ(graph.offsets.size(), 4);
  EXPECT_EQ(k.offsets, graph.tensor(GraphRole::v).offsets);
  EXPECT_NE(k.offsets, q.offsets);  // as many elements a row, of other rows
}

// The figures are cuDNN's own for an H200, less its kilobytes (frontend_graph_test.cpp).
TEST(AttentionGraph, backwards_memory_counts_rows_not_segments) {
  EXPECT_EQ(graph_backward_bytes(131072, 131072, 32, 8, 128), 6459228160);
  EXPECT_EQ(graph_backward_bytes(131072, 131072, 32, 32, 128), 2164260864);
  EXPECT_EQ(graph_backward_bytes(131073, 131072, 32, 32, 128), 2164260864 / 16 * 17);
}

}  // namespace
}  // namespace trireme
