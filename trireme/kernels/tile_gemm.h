// Small matrix products on tiles that lie in cache: on AMX by amx_products.h where whole registers make them
// up, else through libtorch's block kernels (oneDNN brgemm: AVX2 and AVX-512, and for bfloat16 AMX or
// AVX512-BF16). A is row-major. B is cut into panels of 64 columns, as these kernels want it (pack_panels.h):
//
//   float      [K, 64]
//   bfloat16   [K / 2, 64, 2]     rows interleaved by twos ("VNNI"), K even
//
// E is the element type of A and B; sums are fp32.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/ATen.h>

namespace trireme {

// How bfloat16 products are computed: by the processor's own instructions for them, or by plain loops over
// the same panels, which is slow and serves tests of the packing where the processor has none.
enum class Bf16Units { amx, avx512_bf16, loops };

// The instructions that this processor's products use; none where it has none, or where a small product
// through them does not give the right numbers.
std::optional<Bf16Units> processor_bf16_units();

// Products of the thread that made it, which gives AMX's registers back when it goes. A thread has one at a
// time, and multiplies bfloat16 by nothing else meanwhile.
class PanelProducts {
 public:
  explicit PanelProducts(Bf16Units units) : units_(units) {}
  ~PanelProducts() { release(); }
  PanelProducts& operator=(PanelProducts&&) = delete;

  // c[M, N] (+)= a[M, K] panel[K, N], N at most 64.
  void run(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* panel, float* c,
           int64_t ldc, bool add);
  void run(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda, const at::BFloat16* panel,
           float* c, int64_t ldc, bool add);

 private:
  enum class Registers { free, ours, of_libtorch };
  void release();

  Bf16Units units_;
  Registers registers_ = Registers::free;
};

}  // namespace trireme
