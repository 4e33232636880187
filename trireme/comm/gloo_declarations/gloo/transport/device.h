// What ProcessGroupGloo.hpp names of gloo/transport/device.h. See ../../README.md.
#pragma once

namespace gloo::transport {

class Device;

}  // namespace gloo::transport
