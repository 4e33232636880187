#include "trireme/base/splitmix64.h"

#include <array>

#include <gtest/gtest.h>

namespace trireme {
namespace {

// The first numbers of the stream of 1234567, as published with the generator's ports to other languages.
TEST(Splitmix64, gives_the_published_stream) {
  constexpr std::array<uint64_t, 5> kPublished = {6457827717110365317ULL, 3203168211198807973ULL,
                                                  9817491932198370423ULL, 4593380528125082431ULL,
                                                  16408922859458223821ULL};
  for (uint64_t i = 0; i < kPublished.size(); ++i)
    EXPECT_EQ(splitmix64(1234567 + i * kSplitmix64Step), kPublished.at(i));
}

}  // namespace
}  // namespace trireme
