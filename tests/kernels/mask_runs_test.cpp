// Laws of the cut of masks into bands and calls, against brute force over pairs.
#include "trireme/kernels/mask_runs.h"

#include <random>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/sample_layout.h"

#include "tests/kernels/band_laws.h"

namespace trireme::mask_runs_test {
namespace {

using trireme_test::draw_mask;
using trireme_test::DrawnMask;

// The keys that a row of a band sees, as FlashAttention has it: bounds as wide as `longest` keys are none,
// and no right bound beside a left one is as wide as they.
RowRange seen_in_band(Band band, int64_t row, int64_t rows, int64_t keys, int64_t longest) {
  if (band.left >= longest) band.left = kUnbounded;
  if (band.right >= longest) band.right = kUnbounded;
  if (band.left != kUnbounded && band.right == kUnbounded) band.right = longest;
  const int64_t diagonal = keys - rows + row;
  return {band.left == kUnbounded ? 0 : std::max<int64_t>(0, diagonal - band.left),
          band.right == kUnbounded ? keys : std::min(keys, diagonal + band.right + 1)};
}

// Fills the range of each row that a run has, and fails where one has it already.
void expect_runs_to_be(const std::vector<MaskRun>& runs, const KeyRanges& ranges) {
  std::vector<RowRange> seen(ranges.begin.size());
  for (const MaskRun& run : runs) {
    ASSERT_LT(run.q, run.q_end);
    ASSERT_LT(run.k, run.k_end);
    for (int64_t row = run.q; row < run.q_end; ++row) {
      RowRange& own = seen.at(static_cast<size_t>(row));
      ASSERT_EQ(own.end, 0) << "row " << row << " is in two runs";
      const RowRange local = seen_in_band(run.band, row - run.q, run.rows(), run.keys(), run.keys());
      own = {run.k + local.begin, run.k + local.end};
      ASSERT_LT(own.begin, own.end) << "row " << row << " sees nothing in its run";
    }
  }
  for (size_t row = 0; row < seen.size(); ++row) {
    if (ranges.begin[row] == ranges.end[row]) {
      ASSERT_EQ(seen[row].end, 0) << "row " << row;
    } else {
      ASSERT_EQ(seen[row].begin, ranges.begin[row]) << "row " << row;
      ASSERT_EQ(seen[row].end, ranges.end[row]) << "row " << row;
    }
  }
}

struct Segment {
  int64_t rows, keys;
};

// The segments of one sample of a call, which must cover its rows and keys.
std::vector<Segment> segments_of(const MaskCall& call, int64_t sample) {
  if (call.dense()) return {{call.rows(), call.keys()}};
  std::vector<Segment> segments;
  const int64_t first_row = (sample - call.sample) * call.rows(),
                first_key = (sample - call.sample) * call.keys();
  for (size_t i = 0; i + 1 < call.cu_q.size(); ++i) {
    const bool mine = call.cu_q[i] >= first_row && call.cu_q[i + 1] <= first_row + call.rows() &&
                      call.cu_k[i] >= first_key && call.cu_k[i + 1] <= first_key + call.keys();
    if (mine) segments.push_back({call.cu_q[i + 1] - call.cu_q[i], call.cu_k[i + 1] - call.cu_k[i]});
  }
  return segments;
}

void expect_calls_to_be(const std::vector<MaskCall>& calls, const VisibleKeys& keys, int64_t batch,
                        int64_t most_segments) {
  for (int64_t sample = 0; sample < batch; ++sample) {
    const KeyRanges& ranges = keys.of(sample);
    std::vector<RowRange> seen(ranges.begin.size());
    std::vector<int> times(seen.size(), 0);
    for (const MaskCall& call : calls) {
      if (sample < call.sample || sample >= call.sample_end) continue;
      ASSERT_LE(static_cast<int64_t>(call.cu_q.size()) - 1, most_segments);
      ASSERT_EQ(call.cu_q.size(), call.cu_k.size());
      if (!call.dense()) {
        ASSERT_EQ(call.cu_q.back(), (call.sample_end - call.sample) * call.rows());
        ASSERT_EQ(call.cu_k.back(), (call.sample_end - call.sample) * call.keys());
      }
      int64_t row = call.q, key = call.k;
      for (const Segment& segment : segments_of(call, sample)) {
        ASSERT_LE(segment.rows, call.longest_q);
        ASSERT_LE(segment.keys, call.longest_k);
        for (int64_t i = 0; i < segment.rows; ++i) {
          const auto at = static_cast<size_t>(row + i);
          const RowRange local = seen_in_band(call.band, i, segment.rows, segment.keys, call.longest_k);
          seen.at(at) = {};  // a later call replaces what one before gave
          if (segment.keys == 0) continue;
          ++times[at];
          seen[at] = {key + local.begin, key + local.end};
        }
        row += segment.rows;
        key += segment.keys;
      }
      ASSERT_EQ(row, call.q_end);
      ASSERT_EQ(key, call.k_end);
    }
    for (size_t row = 0; row < seen.size(); ++row) {
      ASSERT_LE(times[row], 1) << "row " << row;
      if (ranges.begin[row] == ranges.end[row]) {
        ASSERT_EQ(seen[row].end - seen[row].begin, 0) << "row " << row;
      } else {
        ASSERT_EQ(times[row], 1) << "row " << row;
        ASSERT_EQ(seen[row].begin, ranges.begin[row]) << "row " << row;
        ASSERT_EQ(seen[row].end, ranges.end[row]) << "row " << row;
      }
    }
  }
}

std::shared_ptr<const VisibleKeys> whole(const LayerMask& mask, int64_t tokens,
                                         const std::vector<Documents>& documents = {}) {
  return visible_keys(mask, documents, tokens, {{0, tokens}}, {{0, tokens}});
}

TEST(MaskRuns, see_the_pairs_of_the_mask_each_once) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const DrawnMask mask = draw_mask(seed, 60);
    SCOPED_TRACE(mask.text);
    for (const KeyRanges& ranges : mask.keys->samples) {
      expect_runs_to_be(mask_runs(ranges), ranges);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MaskRuns, hold_for_any_ranges_whose_ends_do_not_fall) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 3000; ++i) {
    KeyRanges ranges;
    int64_t begin = 0, end = 0;
    const auto rows = static_cast<int64_t>(random() % 30), step = static_cast<int64_t>(1 + random() % 4);
    for (int64_t row = 0; row < rows; ++row) {
      begin += static_cast<int64_t>(random()) % step == 0 ? 1 : 0;
      end = std::max(begin, end + static_cast<int64_t>(random() % 3));
      if (random() % 9 == 0) begin = end;
      ranges.begin.push_back(begin);
      ranges.end.push_back(end);
    }
    SCOPED_TRACE(i);
    expect_runs_to_be(mask_runs(ranges), ranges);
    if (HasFatalFailure()) return;
  }
}

TEST(MaskRuns, one_holds_each_kind_of_mask_of_a_whole_sample) {
  const auto only = [](const LayerMask& mask) {
    const auto runs = mask_runs(whole(mask, 100)->samples.front());
    EXPECT_EQ(runs.size(), 1);
    return runs.front();
  };
  EXPECT_EQ(only({}), (MaskRun{0, 100, 0, 100, {kUnbounded, 0}}));
  EXPECT_EQ(only({.window = 7}), (MaskRun{0, 100, 0, 100, {6, 0}}));
  EXPECT_EQ(only({.window = 1}), (MaskRun{0, 100, 0, 100, {0, 0}}));
  EXPECT_EQ(only({.window = 100}), (MaskRun{0, 100, 0, 100, {kUnbounded, 0}}));
  EXPECT_EQ(only({.causality = Causality::full}), (MaskRun{0, 100, 0, 100, {}}));
  EXPECT_EQ(only({.causality = Causality::full, .window = 7}), (MaskRun{0, 100, 0, 100, {6, 6}}));
}

TEST(MaskRuns, one_holds_each_part_of_a_zig_zag_ring) {
  const SampleLayout layout{80, 1, 4};
  for (const Causality causality : {Causality::causal, Causality::full})
    for (int ring_index = 0; ring_index < 4; ++ring_index)
      for (int other = 0; other < 4; ++other) {
        const auto keys = visible_keys({.causality = causality}, {}, 80, layout.ring_spans(ring_index),
                                       layout.ring_spans(other));
        const auto runs = mask_runs(keys->samples.front());
        ASSERT_EQ(runs.size(), 1);
        const MaskRun square{0, 20, 0, 20, {kUnbounded, 0}}, all_queries{0, 20, 0, 10, {}},
            all_keys{10, 20, 0, 20, {}}, everything{0, 20, 0, 20, {}};
        if (causality == Causality::full)
          EXPECT_EQ(runs.front(), everything);
        else
          EXPECT_EQ(runs.front(), ring_index == other ? square : ring_index > other ? all_queries : all_keys);
      }
}

// FlashAttention takes a right bound as wide as the keys for none: many rows that see all of few keys, after
// rows that see some, are two bands.
TEST(MaskRuns, have_no_right_bound_as_wide_as_their_keys) {
  const auto keys = visible_keys({.causality = Causality::full, .window = 10}, {}, 33, {{0, 30}}, {{30, 33}});
  const auto runs = mask_runs(keys->samples.front());
  ASSERT_EQ(runs.size(), 2);
  EXPECT_EQ(runs[0], (MaskRun{21, 26, 0, 3, {kUnbounded, 2}}));
  EXPECT_EQ(runs[1], (MaskRun{26, 30, 0, 3, {}}));
}

TEST(MaskRuns, of_falling_ends_are_refused) {
  EXPECT_THROW(mask_runs({{1, 0}, {2, 2}}), InternalError);
  EXPECT_THROW(mask_runs({{0, 0}, {2, 1}}), InternalError);
  EXPECT_THROW(mask_runs({{3}, {2}}), InternalError);
}

TEST(MaskCalls, compute_the_pairs_of_the_mask_each_once) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const DrawnMask mask = draw_mask(seed, 60);
    SCOPED_TRACE(mask.text);
    for (const int64_t most_segments : {int64_t{3}, int64_t{7}, kMostSegments})
      for (const int64_t least_alone : {int64_t{1}, int64_t{5}, int64_t{20}, kNeverAlone}) {
        const DenseLengths lengths = seed % 2 == 0 ? DenseLengths::of_graphs_and_samples : DenseLengths::any;
        expect_calls_to_be(mask_calls(*mask.keys, mask.batch, most_segments, least_alone, lengths),
                           *mask.keys, mask.batch, most_segments);
        if (HasFatalFailure()) return;
      }
  }
}

TEST(MaskCalls, one_dense_call_takes_samples_that_are_alike) {
  const auto expect_one = [](const VisibleKeys& keys) {
    const auto calls = mask_calls(keys, 3);
    ASSERT_EQ(calls.size(), 1);
    EXPECT_TRUE(calls.front().dense());
    EXPECT_EQ(calls.front().sample_end, 3);
  };
  expect_one(*whole({}, 50));
  expect_one(*whole({.causality = Causality::full, .window = 4}, 50));
  expect_one(*whole({}, 50, {Documents::one(50), Documents::one(50), Documents::one(50)}));
}

// Documents of different lengths, one of a token and one shorter than the window among them.
TEST(MaskCalls, one_call_takes_all_packed_documents_of_all_samples) {
  const std::vector<Documents> documents = {Documents({0, 1, 4, 30, 31, 50}), Documents({0, 50}),
                                            Documents({0, 20, 22, 50})};
  for (const Causality causality : {Causality::causal, Causality::full})
    for (const int64_t window : {0, 5}) {
      const auto calls = mask_calls(*whole({causality, window, {}}, 50, documents), 3);
      ASSERT_EQ(calls.size(), 1);
      EXPECT_EQ(calls.front().cu_q, (std::vector<int32_t>{0, 1, 4, 30, 31, 50, 100, 120, 122, 150}));
      EXPECT_EQ(calls.front().cu_k, calls.front().cu_q);
      EXPECT_EQ(calls.front().longest_q, 50);
      const int64_t right = causality == Causality::causal ? 0 : window == 0 ? kUnbounded : window - 1;
      EXPECT_EQ(calls.front().band, (Band{window == 0 ? kUnbounded : window - 1, right}));
    }
}

// 41 tokens are 40, a length of graphs, and one that stays with the short documents.
TEST(MaskCalls, long_causal_documents_are_squares_of_their_own) {
  const auto calls = mask_calls(*whole({}, 64, {Documents({0, 7, 48, 64})}), 2, kMostSegments, 40);
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0].cu_q, (std::vector<int32_t>{0, 7, 47, 48, 64, 71, 111, 112, 128}));
  EXPECT_EQ(calls[0].cu_k, (std::vector<int32_t>{0, 7, 7, 48, 64, 71, 71, 112, 128}));
  EXPECT_TRUE(calls[1].dense());
  EXPECT_EQ(static_cast<const MaskRun&>(calls[1]), (MaskRun{7, 47, 7, 47, {kUnbounded, 0}}));
  EXPECT_EQ(calls[1].sample_end, 2);
  // A sample of one document is one call, whatever its length.
  const auto other =
      mask_calls(*whole({}, 41, {Documents({0, 41}), Documents({0, 20, 41})}), 2, kMostSegments, 40);
  ASSERT_EQ(other.size(), 2);
  EXPECT_EQ(other[0].cu_q, (std::vector<int32_t>{0, 41, 41, 61, 82}));
  EXPECT_EQ(other[0].cu_k, (std::vector<int32_t>{0, 0, 41, 61, 82}));
  EXPECT_EQ(static_cast<const MaskRun&>(other[1]), (MaskRun{0, 41, 0, 41, {kUnbounded, 0}}));
}

TEST(MaskCalls, long_documents_are_whole_where_calls_have_any_length) {
  const auto calls =
      mask_calls(*whole({}, 64, {Documents({0, 7, 48, 64})}), 1, kMostSegments, 40, DenseLengths::any);
  ASSERT_EQ(calls.size(), 2);
  EXPECT_EQ(calls[0].cu_q, (std::vector<int32_t>{0, 7, 48, 48, 64}));
  EXPECT_EQ(calls[0].cu_k, (std::vector<int32_t>{0, 7, 7, 48, 64}));
  EXPECT_EQ(static_cast<const MaskRun&>(calls[1]), (MaskRun{7, 48, 7, 48, {kUnbounded, 0}}));
}

// Windows, full attention, rectangles of a ring.
TEST(MaskCalls, other_long_documents_stay_among_the_rest) {
  const std::vector<Documents> documents = {Documents({0, 60, 70})};
  for (const LayerMask& mask : {LayerMask{.window = 8}, LayerMask{.causality = Causality::full}})
    EXPECT_EQ(mask_calls(*whole(mask, 70, documents), 1, kMostSegments, 20).size(), 1);
  const auto part = visible_keys({}, documents, 70, {{30, 70}}, {{0, 70}});
  EXPECT_EQ(mask_calls(*part, 1, kMostSegments, 20).size(), 1);
}

// Queries of the ring's last chunk see nothing of another document's keys; they are still rows of the call.
TEST(MaskCalls, rows_and_keys_that_meet_nothing_are_segments_of_their_own) {
  const auto keys = visible_keys({.causality = Causality::full}, {Documents({0, 4, 6, 10})}, 10, {{0, 10}},
                                 {{0, 3}, {8, 10}});
  const auto calls = mask_calls(*keys, 1);
  ASSERT_EQ(calls.size(), 1);
  EXPECT_EQ(calls.front().cu_q, (std::vector<int32_t>{0, 4, 6, 10}));
  EXPECT_EQ(calls.front().cu_k, (std::vector<int32_t>{0, 3, 3, 5}));
}

// Twenty rows that see all of three keys, then rows of a window: beside a left bound the right one would be
// as wide as the longest keys, five, and hide keys from the first rows.
TEST(MaskCalls, a_left_bound_is_not_shared_with_more_rows_than_keys) {
  auto keys = std::make_shared<VisibleKeys>();
  keys->key_rows = 8;
  KeyRanges ranges{std::vector<int64_t>(20, 0), std::vector<int64_t>(20, 3)};
  for (int64_t begin = 3; begin < 8; ++begin) {
    ranges.begin.push_back(begin);
    ranges.end.push_back(8);
  }
  keys->samples = {ranges};
  const auto calls = mask_calls(*keys, 1);
  expect_calls_to_be(calls, *keys, 1, kMostSegments);
  EXPECT_EQ(calls.size(), 2);
}

TEST(MaskCalls, where_no_query_sees_a_key_there_are_none) {
  EXPECT_TRUE(mask_calls(*visible_keys({}, {}, 9, {{0, 4}}, {{4, 9}}), 2).empty());
  EXPECT_TRUE(mask_calls(*visible_keys({}, {}, 0, {}, {}), 2).empty());
}

TEST(MaskCalls, more_rows_than_32_bits_count_are_refused) {
  const int64_t tokens = 70000;  // two documents: 32767 samples at a time
  const std::vector<Documents> alike(1, Documents({0, 5, tokens}));
  EXPECT_THROW(mask_calls(*whole({}, tokens, alike), 65535), ConfigError);
  EXPECT_NO_THROW(mask_calls(*whole({}, tokens), 65535));
}

}  // namespace
}  // namespace trireme::mask_runs_test
