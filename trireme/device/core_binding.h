// Which cores a rank of a machine computes on.
//
// Where ranks may run on any core, a rank that waited in an exchange is woken on the core of the rank that
// woke it, and both compute there until the kernel moves one, milliseconds later. So each rank is bound to
// its share of the cores, as Open MPI's mpirun binds its ranks. A rank that computes on a GPU is bound to the
// processors on that GPU's side of the machine, where its pinned memory then lies too.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

struct Processor {
  int number = 0;
  int package = 0;
  int core = 0;  // hardware threads of one core have the same, within a package
};

// The numbers of the processors of local rank r of n: shares are equal up to one processor, and what is of a
// core, and of a package, lies side by side.
std::vector<int> share_of_processors(std::vector<Processor> processors, int local_rank, int local_size);

// Processors that one of `local_size` ranks computes on: all that it may run on where its launcher bound it
// (srun and mpirun do; it may run on others than its parent), else an equal share of them. At least 1.
int cores_of_rank(int local_size);

// Binds the calling thread, and threads that it starts from now on, to this rank's share of the processors
// that the process may run on. Leaves all as it is for a rank that is alone on its machine, for `threads`
// that exceed the share, and for a process that its launcher bound already. Returns whether it bound.
bool bind_to_share_of_cores(int local_rank, int local_size, int threads);

// The numbers in the kernel's form of a list, "0-2,8"; none where it is not one.
std::vector<int> processors_of_list(std::string_view list);

// Binds as above to the processors near the PCI device at `bus` ("0000:3B:00.0"), as the kernel tells them.
// Leaves all as it is where it tells none or all of those that the process may run on, for `threads` that
// exceed them, and for a process that its launcher bound already. Returns whether it bound.
bool bind_near(const std::string& bus, int threads,
               const std::filesystem::path& devices = "/sys/bus/pci/devices");

}  // namespace trireme
