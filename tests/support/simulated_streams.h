// The two streams of a GPU that copies beside its computation, played on the CPU: work is queued with the addresses it
// works on and happens later, in any order that the marks between the streams allow. What the code under test gives
// back too early is overwritten by then, as it would be on a GPU.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "trireme/memory/copy_stream.h"

namespace trireme::testing {

class SimulatedStreams {
 public:
  explicit SimulatedStreams(unsigned seed) : random_(seed) {}

  // Work for the computation's stream.
  void compute(std::function<void()> work) { compute_.push_back({std::move(work), nullptr}); }
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
  bool idle() const { return compute_.empty() && copies_.empty(); }

  // Outlived by this object.
  std::unique_ptr<CopyStream> copy_stream() { return std::make_unique<Stream>(*this); }

 private:
  class Point final : public StreamMark {
   public:
    explicit Point(SimulatedStreams& streams) : streams_(streams) {}
    bool reached() const override { return reached_; }
    void wait() const override {
      while (!reached_ && streams_.step()) {
      }
      EXPECT_TRUE(reached_) << "waited for what can never happen";
    }
    void reach() { reached_ = true; }

   private:
    SimulatedStreams& streams_;
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
      streams_.copies_.push_back({[] {}, streams_.point(streams_.compute_)});
    }
    void compute_waits(const Mark& mark) override {
      if (mark) streams_.compute_.push_back({[] {}, std::static_pointer_cast<const Point>(mark)});
    }
    void copy(const at::Tensor& to, const at::Tensor& from) override {
      streams_.copies_.push_back({[to = to.mutable_data_ptr(), from = from.const_data_ptr(),
                                   bytes = from.nbytes()] { std::memcpy(to, from, bytes); },
                                  nullptr});
    }
    Mark mark() override { return streams_.point(streams_.copies_); }

   private:
    SimulatedStreams& streams_;
  };

  std::shared_ptr<const Point> point(Queue& queue) {
    auto point = std::make_shared<Point>(*this);
    queue.push_back({[point] { point->reach(); }, nullptr});
    return point;
  }
  static bool ready(const Queue& queue) {
    return !queue.empty() && (queue.front().after == nullptr || queue.front().after->reached());
  }
  // False when nothing can happen.
  bool step() {
    Queue* queue = random_() % 2 == 0 ? &compute_ : &copies_;
    if (!ready(*queue)) queue = queue == &compute_ ? &copies_ : &compute_;
    if (!ready(*queue)) return false;
    const Work work = std::move(queue->front());
    queue->pop_front();
    work.run();
    return true;
  }

  std::mt19937 random_;
  Queue compute_, copies_;
};

}  // namespace trireme::testing
