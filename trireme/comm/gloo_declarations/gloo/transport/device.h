// The declarations of gloo/transport/device.h that ProcessGroupGloo.hpp names. See ../../README.md.
#pragma once

namespace gloo::transport {

class Device;

}  // namespace gloo::transport
