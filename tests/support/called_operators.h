// The libtorch operators that a thread calls, counted by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <ATen/record_function.h>

namespace trireme::testing {

// Counts while it lives; one at a time on a thread.
class CalledOperators {
 public:
  CalledOperators() {
    now_ = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                           ++now_->calls_[function.name()];
                                           return std::unique_ptr<at::ObserverContext>();
                                         }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CalledOperators() {
    at::removeCallback(handle_);
    now_ = nullptr;
  }
  CalledOperators& operator=(CalledOperators&&) = delete;

  // "aten::add_" -> how often.
  int64_t of(const std::string& name) const { return calls_.contains(name) ? calls_.at(name) : 0; }

 private:
  inline static thread_local CalledOperators* now_ = nullptr;
  at::CallbackHandle handle_{};
  std::map<std::string, int64_t> calls_;
};

}  // namespace trireme::testing
