// The streams of a GPU that copies and gathers beside its computation, played on the CPU: work is queued with
// the addresses it works on and happens later, in any order that the marks between the streams allow. What
// the code under test gives back too early is overwritten by then, as it would be on a GPU.
//
//   compute           the computation
//   copies            those of a CopyStream
//   communication     collectives of simulated_group.h, that come behind the stream that they are given on
//
// And a record of what waited: a wait is hasty when the computation was given no unit of its work
// (compute_unit) between what is waited for and the wait. Were copies ever so slow, without hasty waits one
// unit is computed beside each.
#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/memory/copy_stream.h"

namespace trireme::testing {

class SimulatedStreams {
 public:
  explicit SimulatedStreams(unsigned seed) : random_(seed) {}

  // Work for the computation's stream.
  void compute(std::function<void()> work) { queue(kCompute).push_back({std::move(work), nullptr}); }
  // The work of one unit of the model.
  void compute_unit(std::function<void()> work) {
    compute(std::move(work));
    ++units_given_;
  }
  // Nothing was begun ahead for its first unit.
  void begin_pass() { units_before_pass_ = units_given_; }
  // Begun behind what the current stream was given so far; `wait_here` of the result lets the current stream
  // wait for it.
  std::shared_ptr<const StreamMark> communicate(std::function<void()> work) {
    wait(kCommunication, point(current_));
    queue(kCommunication).push_back({std::move(work), nullptr});
    return point(kCommunication);
  }
  void wait_here(const std::shared_ptr<const StreamMark>& mark) {
    wait(current_, std::static_pointer_cast<const Point>(mark));
  }
  // Lets up to `most` pieces of work happen.
  void advance(int most) {
    for (int piece = 0; piece < most && step(); ++piece) {
    }
  }
  // The host waits for everything.
  void finish() {
    while (step()) {
    }
  }
  bool idle() const {
    for (const Queue& queue : queues_)
      if (!queue.empty()) return false;
    return true;
  }
  // In words, but for those before the first unit of a pass.
  const std::vector<std::string>& hasty_waits() const { return hasty_waits_; }

  // Outlived by this object.
  std::unique_ptr<CopyStream> copy_stream() { return std::make_unique<Stream>(*this); }

 private:
  enum StreamName { kCompute, kCopies, kCommunication };
  static constexpr std::array<const char*, 3> kNames{"compute", "copies", "communication"};

  class Point final : public StreamMark {
   public:
    Point(SimulatedStreams& streams, StreamName stream)
        : streams_(streams), stream_(stream), units_before_(streams.units_given_) {}
    bool reached() const override { return reached_; }
    void wait() const override {
      if (!reached_) streams_.note_wait("the host", *this);
      while (!reached_ && streams_.step()) {
      }
      EXPECT_TRUE(reached_) << "waited for what can never happen";
    }
    void reach() { reached_ = true; }
    StreamName stream() const { return stream_; }
    int units_before() const { return units_before_; }

   private:
    SimulatedStreams& streams_;
    StreamName stream_;
    int units_before_;
    bool reached_ = false;
  };
  struct Work {
    std::function<void()> run;
    std::shared_ptr<const Point> after;
  };
  using Queue = std::deque<Work>;

  class Stream final : public CopyStream {
   public:
    explicit Stream(SimulatedStreams& streams) : streams_(streams) {}
    void wait_for_compute() override {
      const auto reached = streams_.point(kCompute);
      streams_.queue(kCopies).push_back({[] {}, reached});
    }
    void compute_waits(const Mark& mark) override {
      if (mark) streams_.wait(kCompute, std::static_pointer_cast<const Point>(mark));
    }
    void copy(const at::Tensor& to, const at::Tensor& from) override {
      streams_.queue(kCopies).push_back({[to = to.mutable_data_ptr(), from = from.const_data_ptr(),
                                          bytes = from.nbytes()] { std::memcpy(to, from, bytes); },
                                         nullptr});
      streams_.units_at_last_copy_ = streams_.units_given_;
    }
    Mark mark() override { return streams_.point(kCopies); }
    void behind_copies(const std::function<void()>& give) override {
      const StreamName before = std::exchange(streams_.current_, kCopies);
      give();
      streams_.current_ = before;
    }

   private:
    SimulatedStreams& streams_;
  };

  Queue& queue(StreamName stream) { return queues_.at(stream); }
  std::shared_ptr<const Point> point(StreamName stream) {
    auto point = std::make_shared<Point>(*this, stream);
    queue(stream).push_back({[point] { point->reach(); }, nullptr});
    return point;
  }
  void wait(StreamName stream, std::shared_ptr<const Point> point) {
    note_wait(kNames.at(stream), *point);
    queue(stream).push_back({[] {}, std::move(point)});
  }
  void note_wait(const std::string& who, const Point& point) {
    if (point.stream() == kCompute) return;  // that is no copy
    // A point behind the copies is as old as the last of them.
    const int given = point.stream() == kCopies ? std::min(point.units_before(), units_at_last_copy_)
                                                : point.units_before();
    if (given == units_given_ && units_given_ > units_before_pass_)
      hasty_waits_.push_back(
          cat(who, ", given ", units_given_, " units, waits for the newest ", kNames.at(point.stream())));
  }
  static bool ready(const Queue& queue) {
    return !queue.empty() && (queue.front().after == nullptr || queue.front().after->reached());
  }
  // False when nothing can happen.
  bool step() {
    const size_t first = random_() % queues_.size();
    for (size_t next = 0; next < queues_.size(); ++next) {
      Queue& queue = queues_.at((first + next) % queues_.size());
      if (!ready(queue)) continue;
      const Work work = std::move(queue.front());
      queue.pop_front();
      work.run();
      return true;
    }
    return false;
  }

  std::mt19937 random_;
  std::array<Queue, 3> queues_;
  StreamName current_ = kCompute;
  int units_given_ = 0;
  int units_before_pass_ = 0;
  int units_at_last_copy_ = 0;
  std::vector<std::string> hasty_waits_;
};

}  // namespace trireme::testing
