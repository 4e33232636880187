// The time that ranks have, once another has ended, to say whom they lost. Over NCCL a rank waits for that one
// on its GPU, without an error: a thread beside it hears of the loss and ends the process (comm/heartbeat.h).
// The launcher kills ranks that go on waiting (launch/attempt.cpp), but not before that.
//
//   another rank ends   <= kHearsOfLoss       this one knows of it   kSpeaksOfLoss         says so, and ends
//                       kAskedAfterSeconds    SIGTERM                kKilledAfterSeconds   SIGKILL
#pragma once

#include <chrono>

namespace trireme {

constexpr std::chrono::seconds kHearsOfLoss{2};
// A rank that is already ending by an error of its own reports that instead.
constexpr std::chrono::seconds kSpeaksOfLoss{3};

// Ranks whose exchanges fail by themselves say so within this time, often before the peer that caused the
// failure ends.
constexpr double kAskedAfterSeconds = 1;
constexpr double kKilledAfterSeconds = 5;  // unless --grace_seconds says otherwise

static_assert(kHearsOfLoss + kSpeaksOfLoss <
              std::chrono::duration<double>(kAskedAfterSeconds + kKilledAfterSeconds));

}  // namespace trireme
