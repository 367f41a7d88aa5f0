// The entry points: they check what would otherwise end the process, choose the kernels for this processor, and turn exceptions
// into a status.
#include "sharpmax.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "threads.h"
#include "variant.h"

namespace {

using namespace sharpmax;

#if defined(__x86_64__)
// Whether the processor and the operating system know the instructions that the kernels are compiled for.
struct Processor {
  bool avx2 = false, avx512 = false, bfloat16 = false;

  Processor() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    constexpr unsigned first = fma | osxsave | avx | f16c;
    if ((c & first) != first) return;
    unsigned low, high; // the registers that the operating system keeps
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    constexpr unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, all = f | dq | bw | vl;
    avx2 = (low & 0x6) == 0x6 && (b & (1u << 5));
    avx512 = avx2 && (low & 0xe6) == 0xe6 && (b & all) == all;
    bfloat16 = avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
  }
};
#endif

struct Choice {
  const char* name = "baseline";
  const Kernels* kernels = &baseline::kernels;
  bool halves = false;

  Choice() {
    const char* named = std::getenv("SHARPMAX_INSTRUCTIONS");
    const auto allowed = [named](const char* most) { return !named || !*named || std::strcmp(named, most) == 0; };
#if defined(__x86_64__)
    const Processor processor;
    if (processor.avx512 && (allowed("avx512_bf16") || allowed("avx512"))) {
      halves = processor.bfloat16 && allowed("avx512_bf16");
      name = halves ? "avx512_bf16" : "avx512";
      kernels = &avx512::kernels;
    } else if (processor.avx2 && (allowed("avx512_bf16") || allowed("avx512") || allowed("avx2"))) {
      name = "avx2";
      kernels = &avx2::kernels;
    }
#else
    (void)allowed;
#endif
  }
};

const Choice& choice() {
  static const Choice made;
  return made;
}

bool valid(const sharpmax_array& array, int64_t elements, bool any_column = false) {
  return elements == 0 || (array.data && (any_column || array.column == 1));
}

bool valid(const sharpmax_problem* given) {
  if (!given) return false;
  const sharpmax_problem& p = *given;
  for (const int64_t size : {p.batches, p.query_heads, p.key_heads, p.queries, p.keys, p.width, p.value_width, p.threads})
    if (size < 0) return false;
  if (p.key_heads ? p.query_heads % p.key_heads : p.query_heads) return false;
  if (p.type < 0 || p.type >= SHARPMAX_BOOLEAN || p.mask_type < 0 || p.mask_type > SHARPMAX_BOOLEAN) return false;
  return valid(p.query, p.batches * p.query_heads * p.queries * p.width) &&
      valid(p.key, p.batches * p.key_heads * p.keys * p.width);
}

int64_t rows_of(const sharpmax_problem& p) { return p.batches * p.query_heads * p.queries; }
int64_t values(const sharpmax_problem& p) { return p.batches * p.key_heads * p.keys * p.value_width; }
int64_t outputs(const sharpmax_problem& p) { return rows_of(p) * p.value_width; }

bool valid(const sharpmax_problem& p, const sharpmax_policy* policy) {
  if (!policy || policy->form < SHARPMAX_GIVEN || policy->form > SHARPMAX_HARD) return false;
  constexpr int64_t least[] = {0, 1, 1, 3, 1, 2, 0};
  if (policy->columns < least[policy->form]) return false;
  if (rows_of(p) == 0) return true;
  if (policy->columns && !policy->parameters) return false;
  return policy->form != SHARPMAX_GIVEN || policy->beta;
}

bool valid(const sharpmax_problem& p, const sharpmax_upstream* upstream) {
  if (!upstream || !valid(p.value, values(p))) return false;
  const bool rows = rows_of(p) == 0 || (upstream->beta && upstream->logmass && upstream->maximum);
  return rows && valid(upstream->gradient, outputs(p)) && valid(upstream->output, outputs(p));
}

// Calls function(choice, problem) if the arguments are valid.
template <class Function> int guarded(bool is_valid, const sharpmax_problem* given, Function&& function) noexcept {
  if (!is_valid) return SHARPMAX_INVALID;
  try {
    sharpmax_problem problem = *given;
    problem.threads = threads_for(problem.threads);
    function(choice(), problem);
  } catch (const std::bad_alloc&) {
    return SHARPMAX_NO_MEMORY;
  } catch (...) {
    return SHARPMAX_FAILED;
  }
  return SHARPMAX_OK;
}

} // namespace

int sharpmax_statistics(const sharpmax_problem* given, const sharpmax_rows* rows) {
  return guarded(valid(given) && rows, given, [=](const Choice& made, const sharpmax_problem& problem) {
    made.kernels->statistics(problem, *rows, made.halves);
  });
}

int sharpmax_forward(const sharpmax_problem* given, const sharpmax_policy* policy, const sharpmax_results* results) {
  const bool fine = valid(given) && valid(given->value, values(*given)) && valid(*given, policy) && results &&
      (results->output.data || outputs(*given) == 0);
  return guarded(fine, given, [=](const Choice& made, const sharpmax_problem& problem) {
    made.kernels->forward(problem, *policy, *results, made.halves);
  });
}

int sharpmax_row_gradient(
    const sharpmax_problem* given, const sharpmax_upstream* upstream, const sharpmax_moments* moments) {
  const bool fine = valid(given) && valid(*given, upstream) && moments &&
      ((moments->by_beta && moments->mean && moments->variance) || rows_of(*given) == 0);
  return guarded(fine, given, [=](const Choice& made, const sharpmax_problem& problem) {
    made.kernels->row_gradient(problem, *upstream, *moments, made.halves);
  });
}

int sharpmax_backward(
    const sharpmax_problem* given, const sharpmax_upstream* upstream, const sharpmax_terms* terms,
    const sharpmax_gradients* gradients) {
  const bool fine = valid(given) && valid(*given, upstream) && terms && !terms->a0 == !terms->c0 && !terms->a1 == !terms->c1 &&
      gradients;
  return guarded(fine, given, [=](const Choice& made, const sharpmax_problem& problem) {
    made.kernels->backward(problem, *upstream, *terms, *gradients, made.halves);
  });
}

int sharpmax_interface(void) { return SHARPMAX_INTERFACE; }

const char* sharpmax_instructions(void) { return choice().name; }
