// Holds a file's sync, as a slow disk would: what another thread does meanwhile can be seen.
#pragma once

#include <string>

namespace trireme::testing {

// While it lives, a sync of a file whose path contains `part` waits for release(). One at a time. Needs the
// library of file_operations.h.
class HeldSync {
 public:
  explicit HeldSync(const std::string& part);
  ~HeldSync();
  HeldSync& operator=(HeldSync&&) = delete;
  void release();
  bool reached() const;  // by a sync, ever
};

}  // namespace trireme::testing
