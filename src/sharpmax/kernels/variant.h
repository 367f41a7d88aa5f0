// The kernels of each instruction set, as tables of functions. They throw std::bad_alloc.
#pragma once

#include "sharpmax.h"

namespace sharpmax {

struct Kernels {
  void (*statistics)(const sharpmax_problem&, const sharpmax_rows&);
  void (*forward)(const sharpmax_problem&, const sharpmax_policy&, const sharpmax_results&);
  void (*row_gradient)(const sharpmax_problem&, const sharpmax_upstream&, const sharpmax_moments&);
  void (*backward)(const sharpmax_problem&, const sharpmax_upstream&, const sharpmax_terms&, const sharpmax_gradients&);
};

namespace baseline { extern const Kernels kernels; }
#if defined(__x86_64__)
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
#endif

} // namespace sharpmax
