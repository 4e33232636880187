// trireme verify: compares loss, logits and every gradient with a reference file (format:
// eval/verify_reference.h). Alone, under a launcher, or with ranks as threads. Exits 0 when all are within
// the tolerance, 1 when not.
#pragma once

#include <string>
#include <vector>

namespace trireme {

int run_verify(const std::vector<std::string>& arguments);

}  // namespace trireme
