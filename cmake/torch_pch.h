// Precompiled header of every library that uses libtorch: parsing these costs seconds a file.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for would be serial: compile for OpenMP"
#endif
