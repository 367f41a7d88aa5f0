// The kernels of one instruction set, that of the compiler's flags. The library has checked all arguments.
#include "variant.h"

#include "backward.h"
#include "split.h"

namespace sharpmax::SHARPMAX_VARIANT {
namespace {

// How many panels go over the keys together. One if the logits of one panel fit the second-level cache. Otherwise several panels
// share the cost of fetching or copying keys and values, as long as every thread has enough to do. The number of rows per task is
// limited, and with it the memory per thread: 6 MiB at 16384 keys in single precision.
template <class T> int panels_for(const Problem& problem) {
  constexpr int64_t cache = 800 << 10, rows = 96;
  const bool copied = problem.key.scalar != native_scalar<T>() || rows_collide(problem.key); // sharing pays off at any length
  if (!copied && problem.keys * Panel<T>::capacity * static_cast<int64_t>(sizeof(T)) <= cache) return 1;
  const int64_t fitting = std::clamp<int64_t>(rows / Panel<T>::capacity, 1, kMaximumPanels);
  const int64_t panels = Division<T>(problem, 1).tasks;
  return static_cast<int>(std::clamp<int64_t>(panels / (4 * problem.threads), 1, fitting));
}

template <class T> void attend(Problem& problem, const void* beta, const Results<T>& results) {
  const T* given = problem.policy == Policy::given ? static_cast<const T*>(beta) : nullptr;
  if constexpr (sizeof(T) == 4)
    problem.halves = problem.halves && suits_halves(problem, given);
  else
    problem.halves = false;
  if (suits_decoding<T>(problem))
    Decoding<T>{problem, given, results}.run();
  else if (const int64_t parts = parts_for<T>(problem); parts > 1)
    Split<T>{problem, given, results, parts}.run();
  else
    attend_panels<T>(problem, given, panels_for<T>(problem), results);
}

template <class T> Results<T> results_of(const sharpmax_rows& rows) {
  return {{}, static_cast<T*>(rows.maximum), static_cast<T*>(rows.mass), static_cast<T*>(rows.moment), rows.count};
}

template <class T> RowInputs<T> inputs_of(const sharpmax_upstream& from, const sharpmax_terms& terms) {
  const auto row = [](const void* data) { return static_cast<const T*>(data); };
  return {row(from.beta), row(from.logmass), row(from.maximum), row(from.of_logmass),
          row(terms.a0),  row(terms.c0),     row(terms.a1),     row(terms.c1)};
}

// Calls function(T()) with the type that the kernels compute in.
template <class Function> void with_row_type(const Problem& problem, Function&& function) {
  problem.query.scalar == Scalar::float64 ? function(0.) : function(0.f);
}

void statistics(const sharpmax_problem& given, const sharpmax_rows& rows, bool halves) {
  Problem problem(given);
  problem.halves = halves;
  problem.value_width = 0;
  with_row_type(problem, [&](auto zero) { attend(problem, nullptr, results_of<decltype(zero)>(rows)); });
}

void forward(const sharpmax_problem& given, const sharpmax_policy& policy, const sharpmax_results& results, bool halves) {
  Problem problem(given);
  problem.halves = halves;
  problem.policy = static_cast<Policy>(policy.form);
  problem.parameters = policy.parameters;
  problem.parameter_count = policy.columns;
  problem.parameter_stride = policy.stride;
  with_row_type(problem, [&](auto zero) {
    using T = decltype(zero);
    Results<T> to = results_of<T>(results.rows);
    to.output = results.output;
    if (!to.output.data) to.output.data = &to; // without columns nothing is written
    to.beta = static_cast<T*>(results.beta);
    to.logmass = static_cast<T*>(results.logmass);
    attend(problem, policy.beta, to);
  });
}

// Whether to take the products of gradients in bfloat16.
template <class T> bool halves_suit(const Problem& problem, const sharpmax_upstream& from, int64_t type, bool halves) {
  if constexpr (sizeof(T) == 4)
    return halves && gradients_suit_halves(problem, {from.gradient, type}, static_cast<const T*>(from.beta));
  return false;
}

void row_gradient(
    const sharpmax_problem& given, const sharpmax_upstream& upstream, const sharpmax_moments& moments, bool halves) {
  Problem problem(given);
  with_row_type(problem, [&](auto zero) {
    using T = decltype(zero);
    problem.halves = halves_suit<T>(problem, upstream, given.type, halves);
    Backward<T> backward{problem, {upstream.gradient, given.type}, {upstream.output, given.type}, inputs_of<T>(upstream, {})};
    backward.by_beta = static_cast<T*>(moments.by_beta);
    backward.mean = static_cast<T*>(moments.mean);
    backward.variance = static_cast<T*>(moments.variance);
    backward.run_rows(panels_for<T>(problem));
  });
}

void backward(
    const sharpmax_problem& given, const sharpmax_upstream& upstream, const sharpmax_terms& terms,
    const sharpmax_gradients& gradients, bool halves) {
  Problem problem(given);
  with_row_type(problem, [&](auto zero) {
    using T = decltype(zero);
    problem.halves = halves_suit<T>(problem, upstream, given.type, halves);
    Backward<T> backward{problem, {upstream.gradient, given.type}, {upstream.output, given.type}, inputs_of<T>(upstream, terms)};
    backward.query_gradient = gradients.query;
    backward.key_gradient = gradients.key;
    backward.value_gradient = gradients.value;
    const int64_t rows = problem.batches * problem.query_heads * problem.queries;
    const Buffer<T> of_sink(gradients.sink ? rows : 0);
    if (gradients.sink) backward.sink_gradient = of_sink.get();
    backward.mask_gradient = static_cast<T*>(gradients.mask);
    backward.by_beta = static_cast<T*>(gradients.beta);
    if (gradients.mask) std::fill_n(backward.mask_gradient, rows * problem.keys, T(0));
    backward.run();
    for (int64_t head = 0; gradients.sink && head < problem.query_heads; ++head) {
      double sum = 0;
      for (int64_t batch = 0; batch < problem.batches; ++batch)
        for (int64_t row = 0; row < problem.queries; ++row) sum += of_sink[problem.place(batch, head, row)];
      static_cast<T*>(gradients.sink)[head] = static_cast<T>(sum);
    }
  });
}

} // namespace

const Kernels kernels{statistics, forward, row_gradient, backward};

} // namespace sharpmax::SHARPMAX_VARIANT
