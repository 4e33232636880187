// The hardware profiles that are built in, of NVIDIA's SXM boards in machines of eight (DGX, HGX). A measured
// one (trireme bench hardware) is better: these join data sheets, other people's measurements, and estimates;
// `sources` says which figure is which.
#pragma once

#include <string>
#include <vector>

#include "trireme/plan/hardware_profile.h"

namespace trireme {

// a100-40gb, a100-80gb, h100-80gb, h200-141gb, b200-180gb
const std::vector<HardwareProfile>& hardware_catalog();

// By its name, the beginning of it ("h100"), or as people and drivers write it ("H100-80", "NVIDIA
// A100-SXM4-80GB"). Throws ConfigError: none, with the nearest name, or several.
const HardwareProfile& find_hardware(const std::string& name);

// Of a file that `trireme bench hardware` wrote, or built in. Throws ConfigError as find_hardware(),
// DataError as hardware_profile_from_json().
HardwareProfile read_hardware(const std::string& file_or_name);

}  // namespace trireme
