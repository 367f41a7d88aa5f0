// The kernels of each instruction set, as tables of functions. They throw std::bad_alloc.
#pragma once

#include "sharpmax.h"

namespace sharpmax {

struct Kernels {
  // With `halves`, the processor has an instruction for products of bfloat16.
  void (*statistics)(const sharpmax_problem&, const sharpmax_rows&, bool halves);
  void (*forward)(const sharpmax_problem&, const sharpmax_policy&, const sharpmax_results&, bool halves);
  void (*row_gradient)(const sharpmax_problem&, const sharpmax_upstream&, const sharpmax_moments&, bool halves);
  void (*backward)(
      const sharpmax_problem&, const sharpmax_upstream&, const sharpmax_terms&, const sharpmax_gradients&, bool halves);
};

namespace baseline { extern const Kernels kernels; }
#if defined(__x86_64__)
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
#endif

} // namespace sharpmax
