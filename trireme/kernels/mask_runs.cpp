// Runs grow row by row; calls take runs as long as their keys are apart and one pair of bounds serves them
// all.
#include "trireme/kernels/mask_runs.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "trireme/base/error.h"

namespace trireme {

namespace {

// A run that rows are still added to. In a band the first key stays and then rises by one a row, and the end
// of the keys rises by one a row and then stays.
class OpenRun {
 public:
  OpenRun(int64_t row, int64_t begin, int64_t end)
      : run_{row, row + 1, begin, end, {}}, begin_(begin), end_(end) {}

  // False: the row is not of this band.
  bool add(int64_t begin, int64_t end) {
    const bool begin_rises = begin == begin_ + 1, end_rises = end == end_ + 1;
    if (!begin_rises && (begin != begin_ || begin_rises_)) return false;
    if (end_rises ? rows_at_end_ > 0 : end != end_) return false;
    // FlashAttention takes a right bound as wide as the keys for none, and beside a left bound none for one
    // as wide as the keys.
    const int64_t keys = end - run_.k;
    if (!end_rises && end_rises_ && rows_at_end_ + 1 == keys) return false;
    if ((begin_rises || begin_rises_) && !end_rises && !end_rises_ && run_.rows() > keys) return false;
    begin_rises_ |= begin_rises;
    end_rises_ |= end_rises;
    if (!end_rises) ++rows_at_end_;
    begin_ = begin;
    end_ = end;
    ++run_.q_end;
    return true;
  }

  MaskRun close() const {
    MaskRun run = run_;
    run.k_end = end_;
    // The last row's diagonal is the last key, and that of the row where the end came to rest is rows_at_end_
    // before.
    if (begin_rises_) run.band.left = end_ - 1 - begin_;
    if (end_rises_) run.band.right = rows_at_end_;
    return run;
  }

 private:
  MaskRun run_;
  int64_t begin_;  // of the last row
  int64_t end_;
  bool begin_rises_ = false;
  bool end_rises_ = false;
  int64_t rows_at_end_ = 0;  // since the end last rose, or from the first row
};

// No row sees more than one key: a window of one token, or documents of one.
bool single_keys(const KeyRanges& ranges) {
  for (size_t row = 0; row < ranges.begin.size(); ++row)
    if (ranges.end[row] - ranges.begin[row] > 1) return false;
  return true;
}

// A bound that serves several runs.
class CommonBound {
 public:
  // `needed`: what hides nothing of a run without a bound. False, and no change: none serves this run too.
  bool admit(int64_t bound, int64_t needed) {
    if (bound != kUnbounded && asked_ != kUnbounded && bound != asked_) return false;
    const int64_t asked = bound == kUnbounded ? asked_ : bound;
    const int64_t least = bound == kUnbounded ? std::max(least_, needed) : least_;
    if (asked != kUnbounded && asked < least) return false;
    asked_ = asked;
    least_ = least;
    return true;
  }
  int64_t value() const { return asked_; }

 private:
  int64_t asked_ = kUnbounded;
  int64_t least_ = 0;
};

class CommonBand {
 public:
  bool admit(const MaskRun& run) {
    CommonBand with = *this;
    with.most_rows_ = std::max(most_rows_, run.rows());
    with.most_keys_ = std::max(most_keys_, run.keys());
    if (!with.left_.admit(run.band.left, run.keys() - 1) ||
        !with.right_.admit(run.band.right, run.rows() - 1) || with.right_hides())
      return false;
    *this = with;
    return true;
  }
  Band value() const { return {left_.value(), right_.value()}; }

 private:
  // No right bound is one as wide as the longest keys where there is a left one.
  bool right_hides() const {
    return left_.value() != kUnbounded && right_.value() == kUnbounded && most_rows_ - 1 > most_keys_;
  }

  CommonBound left_, right_;
  int64_t most_rows_ = 0;
  int64_t most_keys_ = 0;
};

// Of a run that follows rows and keys up to `before`'s ends, with what lies between.
int64_t segments_of(const MaskRun& before, const MaskRun& run) {
  return 1 + static_cast<int64_t>(run.q > before.q_end) + static_cast<int64_t>(run.k > before.k_end);
}

// Successive runs of one sample that share a call.
struct RunGroup {
  size_t first = 0;
  size_t end = 0;
  int64_t segments = 0;
  CommonBand band;
};

std::vector<RunGroup> groups_of(const std::vector<MaskRun>& runs, int64_t most_segments) {
  std::vector<RunGroup> groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    const MaskRun& run = runs[i];
    if (i > 0) {
      TRIREME_ASSERT(run.q >= runs[i - 1].q_end, "query row ", run.q, " is in two runs");
      RunGroup& group = groups.back();
      const int64_t more = segments_of(runs[i - 1], run);
      if (run.k >= runs[i - 1].k_end && group.segments + more <= most_segments && group.band.admit(run)) {
        group.segments += more;
        group.end = i + 1;
        continue;
      }
    }
    RunGroup group{i, i + 1, 1, {}};
    group.band.admit(run);
    groups.push_back(group);
  }
  return groups;
}

void check_count(int64_t rows, const char* what) {
  if (rows > std::numeric_limits<int32_t>::max())
    throw ConfigError(cat("attention: got ", rows, " ", what,
                          " in one call of a kernel that counts them in 32 bits, expected at most ",
                          std::numeric_limits<int32_t>::max(), "; use a smaller batch or more ranks"));
}

void check_counts(const MaskCall& call) {
  const int64_t samples = call.dense() ? 1 : call.sample_end - call.sample;
  check_count(samples * call.rows(), "query rows");
  check_count(samples * call.keys(), "key rows");
}

void begin_segments(MaskCall& call) {
  call.cu_q.assign(1, 0);
  call.cu_k.assign(1, 0);
}

void add_segment(MaskCall& call, int64_t rows, int64_t keys) {
  if (rows == 0 && keys == 0) return;
  call.cu_q.push_back(static_cast<int32_t>(call.cu_q.back() + rows));
  call.cu_k.push_back(static_cast<int32_t>(call.cu_k.back() + keys));
  call.longest_q = std::max(call.longest_q, rows);
  call.longest_k = std::max(call.longest_k, keys);
}

// All that the call holds of its next sample.
void add_sample(MaskCall& call, std::span<const MaskRun> runs) {
  int64_t q = call.q, k = call.k;
  for (const MaskRun& run : runs) {
    add_segment(call, run.q - q, 0);
    add_segment(call, 0, run.k - k);
    add_segment(call, run.rows(), run.keys());
    q = run.q_end;
    k = run.k_end;
  }
  add_segment(call, call.q_end - q, 0);
  add_segment(call, 0, call.k_end - k);
}

// The same runs in samples [sample, sample_end).
MaskCall call_of(std::span<const MaskRun> runs, const Band& band, int64_t sample, int64_t sample_end) {
  MaskCall call{runs.front(), sample, sample_end, {}, {}, runs.front().rows(), runs.front().keys()};
  call.q_end = runs.back().q_end;
  call.k_end = runs.back().k_end;
  call.band = band;
  if (runs.size() > 1) begin_segments(call);
  check_counts(call);
  if (runs.size() > 1)
    for (int64_t s = sample; s < sample_end; ++s) add_sample(call, runs);
  return call;
}

// The runs of a sample that share calls, and those that have their own.
struct SampleRuns {
  std::vector<MaskRun> shared;
  std::vector<MaskRun> alone;
  bool operator==(const SampleRuns&) const = default;
};

SampleRuns runs_of(const KeyRanges& ranges, int64_t least_alone, DenseLengths lengths) {
  SampleRuns runs;
  for (MaskRun run : mask_runs(ranges)) {
    if (!run.band.causal() || run.rows() != run.keys() || run.rows() < least_alone) {
      runs.shared.push_back(run);
      continue;
    }
    const bool whole = lengths == DenseLengths::any ||
                       (lengths == DenseLengths::of_graphs_and_samples && run.rows() == ranges.queries());
    const int64_t tokens = whole ? run.rows() : tokens_of_graph(run.rows());
    runs.alone.push_back({run.q, run.q + tokens, run.k, run.k + tokens, run.band});
    run.q += tokens;
    if (run.rows() > 0) runs.shared.push_back(run);
  }
  return runs;
}

// The shared runs of all samples, each with its own, if one call can take them.
std::optional<MaskCall> call_of_all(const std::vector<SampleRuns>& samples, const VisibleKeys& keys,
                                    int64_t most_segments) {
  const auto has_none = [](const SampleRuns& runs) { return runs.shared.empty(); };
  if (std::all_of(samples.begin(), samples.end(), has_none)) return std::nullopt;
  CommonBand band;
  int64_t segments = 0;
  for (const SampleRuns& runs : samples) {
    MaskRun before;
    for (const MaskRun& run : runs.shared) {
      if (run.k < before.k_end || !band.admit(run)) return std::nullopt;
      segments += segments_of(before, run);
      before = run;
    }
    segments += static_cast<int64_t>(before.q_end < keys.queries()) +
                static_cast<int64_t>(before.k_end < keys.key_rows);
  }
  if (segments > most_segments) return std::nullopt;
  MaskCall call;
  call.sample_end = static_cast<int64_t>(samples.size());
  call.q_end = keys.queries();
  call.k_end = keys.key_rows;
  call.band = band.value();
  begin_segments(call);
  check_counts(call);
  for (const SampleRuns& runs : samples) add_sample(call, runs.shared);
  return call;
}

// The calls of runs that samples [sample, sample_end) have alike.
void add_shared_calls(std::vector<MaskCall>& calls, const std::vector<MaskRun>& runs, int64_t sample,
                      int64_t sample_end, int64_t most_segments) {
  for (const RunGroup& group : groups_of(runs, most_segments)) {
    const std::span<const MaskRun> group_runs(runs.data() + group.first, group.end - group.first);
    // Segments of each sample; with a single run there are none, and samples do not count.
    const int64_t at_a_time =
        group_runs.size() == 1 ? sample_end - sample : std::max<int64_t>(1, most_segments / group.segments);
    for (int64_t first = sample; first < sample_end; first += at_a_time)
      calls.push_back(
          call_of(group_runs, group.band.value(), first, std::min(sample_end, first + at_a_time)));
  }
}

}  // namespace

std::vector<MaskRun> mask_runs(const KeyRanges& ranges) {
  std::vector<MaskRun> runs;
  std::optional<OpenRun> open;
  // Rows with keys apart are of different documents. Where every row sees one key at most, cutting there
  // would leave a run a row, and one diagonal band does.
  const bool cut_apart = !single_keys(ranges);
  for (size_t row = 0; row < ranges.begin.size(); ++row) {
    const int64_t begin = ranges.begin[row], end = ranges.end[row];
    TRIREME_ASSERT(
        begin <= end && (row == 0 || (begin >= ranges.begin[row - 1] && end >= ranges.end[row - 1])),
        "the keys of query row ", row, " are [", begin, ", ", end, ")");
    if (open && begin < end && !(cut_apart && begin >= ranges.end[row - 1]) && open->add(begin, end))
      continue;
    if (open) runs.push_back(open->close());
    open.reset();
    if (begin < end) open.emplace(static_cast<int64_t>(row), begin, end);
  }
  if (open) runs.push_back(open->close());
  return runs;
}

std::vector<MaskCall> mask_calls(const VisibleKeys& keys, int64_t batch, int64_t most_segments,
                                 int64_t least_alone, DenseLengths lengths) {
  TRIREME_ASSERT(keys.sparse.dense(), "block-sparse masks are no bands");
  std::vector<SampleRuns> samples;
  samples.reserve(keys.samples.size());
  for (const KeyRanges& ranges : keys.samples) samples.push_back(runs_of(ranges, least_alone, lengths));
  const bool alike = std::all_of(samples.begin(), samples.end(),
                                 [&](const SampleRuns& runs) { return runs == samples.front(); });
  std::vector<MaskCall> calls;
  std::optional<MaskCall> all;
  if (!alike) all = call_of_all(samples, keys, most_segments);
  const int64_t times = alike ? 1 : batch;
  const auto end_of = [&](int64_t sample) { return alike ? batch : sample + 1; };
  if (all)
    calls.push_back(std::move(*all));
  else
    for (int64_t s = 0; s < times; ++s)
      add_shared_calls(calls, samples[static_cast<size_t>(s)].shared, s, end_of(s), most_segments);
  for (int64_t s = 0; s < times; ++s)
    for (const MaskRun& run : samples[static_cast<size_t>(s)].alone)
      calls.push_back(call_of(std::span(&run, 1), run.band, s, end_of(s)));
  return calls;
}

}  // namespace trireme
