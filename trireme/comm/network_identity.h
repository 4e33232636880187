// Which ranks reach each other over the loopback interface.
#pragma once

#include <string>

namespace trireme {

// Equal on ranks of one machine and one network namespace, and on no others.
std::string network_identity();

}  // namespace trireme
