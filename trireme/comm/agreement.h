// What ranks decide together: whether all of them succeeded, whether any was asked to stop, what their
// numbers come to. Without it a rank that fails alone (a full disk, a missing file) would leave the others
// waiting until the timeout.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ATen.h>

#include "trireme/comm/group.h"

namespace trireme {

class Agreement {
 public:
  // `device` is where the group's backend exchanges tensors.
  Agreement(Group& group, at::Device device) : group_(group), device_(device) {}

  // Every rank runs its `work`; then either it returns on all ranks, or all throw: those that failed their
  // own error, the others one of the same kind that names the rank which failed and `what` it was doing.
  // Collective, and `work` is not: a rank that failed in an exchange would find nobody to agree with.
  void all_or_none(const std::string& what, const std::function<void()>& work);

  // Rank 0 runs its `work` on a thread of its own, for as long as it takes: the others do not give up at the
  // group's timeout while rank 0 lives. Otherwise as all_or_none. Collective.
  void while_rank_0_works(const std::string& what, const std::function<void()>& work);

  // Of int64_t or double. Every rank gets the same results. Collective, with as many values on every rank.
  //
  // [rank][i]
  template <typename T>
  std::vector<std::vector<T>> gather(const std::vector<T>& values);
  // [rank], also of a struct of numbers of 8 bytes each (bytes between them would have no value).
  template <typename T>
  std::vector<T> gather_one(const T& value) {
    constexpr size_t kWord_bytes = 8;
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % kWord_bytes == 0);
    using Words = std::array<int64_t, sizeof(T) / kWord_bytes>;
    const auto words = std::bit_cast<Words>(value);
    std::vector<T> result;
    for (const std::vector<int64_t>& row : gather(std::vector(words.begin(), words.end()))) {
      Words of_rank{};
      std::ranges::copy(row, of_rank.begin());
      result.push_back(std::bit_cast<T>(of_rank));
    }
    return result;
  }
  // [i] over all ranks; NaN where a rank has NaN, but over NCCL, whose maximum may leave it out.
  template <typename T>
  std::vector<T> largest(const std::vector<T>& values);
  // [i] added up in rank order.
  template <typename T>
  std::vector<T> sum(const std::vector<T>& values);

  int64_t largest(int64_t value) { return largest(std::vector{value}).front(); }
  int64_t sum(int64_t value) { return sum(std::vector{value}).front(); }
  double sum(double value) { return sum(std::vector{value}).front(); }
  // True when it is true on any rank. Collective.
  bool any(bool value) { return largest(value ? 1 : 0) != 0; }
  // Rank 0's value everywhere. Collective.
  int64_t of_rank_0(int64_t value);
  // The text of the first rank that has one, everywhere; empty: none has. Collective.
  std::string first_text(const std::string& text);

 private:
  Group& group_;
  at::Device device_;
};

}  // namespace trireme
