#include "trireme/cli/run_program.h"

#include "bench/comm/bench_comm.h"

int main(int argc, char** argv) {
  return trireme::run_program([&] { return trireme::run_bench_comm({argv + 1, argv + argc}); });
}
