// Python's door to the CPU kernels. Everything has been validated on the Python side.
//
// The seventh result of `forward`, logmass, is log(sum over keys of exp(beta * (e - maximum))), sink included: the logarithm of
// the tempered sum *relative to beta * maximum*. The plain logarithm, beta * maximum + logmass, would lose in float32 what the
// backward pass needs when beta is large. It is -inf for a row without keys and finite for beta = inf.
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/utils/pybind.h>

#include "cpu_backward.h"
#include "cpu_decode.h"
#include "cpu_forward.h"

namespace {

using at::Tensor;
using namespace sharpmax;
using MaybeTensor = std::optional<Tensor>;

Scalar scalar_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return Scalar::float32;
    case at::kDouble: return Scalar::float64;
    case at::kHalf: return Scalar::float16;
    case at::kBFloat16: return Scalar::bfloat16;
    case at::kBool: return Scalar::boolean;
    default: TORCH_CHECK(false, "sharpmax: no CPU kernel for ", tensor.scalar_type());
  }
}

Strided strided(const Tensor& tensor) {
  return {tensor.const_data_ptr(), scalar_of(tensor), tensor.stride(0), tensor.stride(1), tensor.stride(2),
          tensor.stride(3)};
}

Tensor with_adjacent_columns(const Tensor& tensor) {
  return tensor.size(3) <= 1 || tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

Problem describe(
    const Tensor& query, const Tensor& key, int64_t value_width, const MaybeTensor& mask, const MaybeTensor& sink,
    double scale, double softcap, int64_t left, int64_t right, int64_t offset, bool sink_counted) {
  Problem problem;
  problem.batches = query.size(0);
  problem.query_heads = query.size(1);
  problem.queries = query.size(2);
  problem.width = query.size(3);
  problem.key_heads = key.size(1);
  problem.keys = key.size(2);
  problem.value_width = value_width;
  problem.query = strided(query);
  problem.key = strided(key);
  if (mask) {
    problem.masked = true;
    problem.mask = strided(*mask);
  }
  if (sink) {
    if (sink->scalar_type() == at::kDouble)
      problem.sink64 = sink->const_data_ptr<double>();
    else
      problem.sink32 = sink->const_data_ptr<float>();
  }
  problem.sink_counted = sink_counted;
  problem.scale = scale;
  problem.softcap = softcap;
  problem.left = left;
  problem.right = right;
  problem.offset = offset;
  return problem;
}

// A sink as float32 or float64 numbers that lie side by side.
MaybeTensor plain(const MaybeTensor& sink) {
  if (!sink) return sink;
  return (sink->scalar_type() == at::kDouble ? *sink : sink->to(at::kFloat)).contiguous();
}

at::ScalarType statistics_type(const Tensor& query) { return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// How many panels go over the keys together. While the logits of one fit the second-level cache, one; beyond that, several share
// what keys and values cost to fetch or copy, as long as all threads have enough to do. The rows of a task are limited, and with
// them the memory of a thread: 6 MiB at 16384 keys in single precision.
template <class T> int panels_for(const Problem& problem) {
  constexpr int64_t cache = 800 << 10, rows = 96;
  const bool copied = problem.key.scalar != native_scalar<T>() || rows_collide(problem.key); // worth sharing at any length
  if (!copied && problem.keys * Panel<T>::capacity * static_cast<int64_t>(sizeof(T)) <= cache) return 1;
  const int64_t fitting = std::clamp<int64_t>(rows / Panel<T>::capacity, 1, kMaximumPanels);
  const int64_t panels = Division<T>(problem, 1).tasks;
  return static_cast<int>(std::clamp<int64_t>(panels / (4 * at::get_num_threads()), 1, fitting));
}

using Statistics = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Statistics statistics(
    const Tensor& query_, const Tensor& key_, const MaybeTensor& mask, const MaybeTensor& sink_, double scale,
    double softcap, int64_t left, int64_t right, int64_t offset, bool sink_counted) {
  const Tensor query = with_adjacent_columns(query_), key = with_adjacent_columns(key_);
  const MaybeTensor sink = plain(sink_);
  const Problem problem = describe(query, key, 0, mask, sink, scale, softcap, left, right, offset, sink_counted);
  const auto options = query.options().dtype(statistics_type(query));
  const auto shape = query.sizes().slice(0, 3);
  const Tensor maximum = at::empty(shape, options), mass = at::empty(shape, options), moment = at::empty(shape, options);
  const Tensor count = at::empty(shape, options.dtype(at::kLong));
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    Results<T> results;
    results.maximum = maximum.data_ptr<T>();
    results.mass = mass.data_ptr<T>();
    results.moment = moment.data_ptr<T>();
    results.count = count.data_ptr<int64_t>();
    if (suits_decoding<T>(problem))
      decode<T>(problem, nullptr, results);
    else
      gather_panels<T>(problem, panels_for<T>(problem), results);
  };
  query.scalar_type() == at::kDouble ? run(0.) : run(0.f);
  return {maximum, mass, moment, count};
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward forward(
    const Tensor& query_, const Tensor& key_, const Tensor& value_, const MaybeTensor& mask, const MaybeTensor& sink_,
    const MaybeTensor& beta_, int64_t policy, const Tensor& parameters_, double scale, double softcap, int64_t left,
    int64_t right, int64_t offset, bool sink_counted) {
  const Tensor query = with_adjacent_columns(query_), key = with_adjacent_columns(key_);
  const Tensor value = with_adjacent_columns(value_);
  const MaybeTensor sink = plain(sink_);
  const Tensor parameters = parameters_.contiguous();
  Problem problem = describe(query, key, value.size(3), mask, sink, scale, softcap, left, right, offset, sink_counted);
  problem.value = strided(value);
  problem.policy = static_cast<Policy>(policy);
  problem.parameters = parameters.const_data_ptr<double>();
  problem.parameter_count = parameters.size(1);
  problem.parameter_stride = parameters.size(0) > 1 ? parameters.size(1) : 0;
  const auto options = query.options().dtype(statistics_type(query));
  const auto shape = query.sizes().slice(0, 3);
  const Tensor output =
      at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options());
  const Tensor maximum = at::empty(shape, options), mass = at::empty(shape, options), moment = at::empty(shape, options);
  const Tensor beta = at::empty(shape, options), logmass = at::empty(shape, options);
  const Tensor count = at::empty(shape, options.dtype(at::kLong));
  const Tensor given = beta_ ? beta_->contiguous() : Tensor();
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    Results<T> results;
    results.output = output.data_ptr();
    results.maximum = maximum.data_ptr<T>();
    results.mass = mass.data_ptr<T>();
    results.moment = moment.data_ptr<T>();
    results.beta = beta.data_ptr<T>();
    results.logmass = logmass.data_ptr<T>();
    results.count = count.data_ptr<int64_t>();
    const T* given_beta = problem.policy == Policy::given ? given.const_data_ptr<T>() : nullptr;
    if (suits_decoding<T>(problem))
      decode<T>(problem, given_beta, results);
    else
      attend_panels<T>(problem, given_beta, panels_for<T>(problem), results);
  };
  query.scalar_type() == at::kDouble ? run(0.) : run(0.f);
  return {output, maximum, mass, moment, count, beta, logmass};
}

// A row-wise input as numbers of type T that lie side by side; null where it is absent.
template <class T> const T* rowwise(MaybeTensor& tensor) {
  if (!tensor) return nullptr;
  tensor = tensor->contiguous();
  return tensor->const_data_ptr<T>();
}

template <class T> RowInputs<T> row_inputs(MaybeTensor (&rows)[8]) {
  return {rowwise<T>(rows[0]), rowwise<T>(rows[1]), rowwise<T>(rows[2]), rowwise<T>(rows[3]),
          rowwise<T>(rows[4]), rowwise<T>(rows[5]), rowwise<T>(rows[6]), rowwise<T>(rows[7])};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Gradients of query, key, value, of the mask before any reduction (empty unless wanted) and of the sink (empty unless given).
Gradients backward(
    const Tensor& upstream_, const Tensor& query_, const Tensor& key_, const Tensor& value_, const MaybeTensor& mask,
    const MaybeTensor& sink_, const Tensor& output_, const Tensor& beta, const Tensor& logmass, const Tensor& maximum,
    const Tensor& mass, const MaybeTensor& c0, const MaybeTensor& mu0, const MaybeTensor& c1, const MaybeTensor& mu1,
    double scale, double softcap, int64_t left, int64_t right, int64_t offset, bool sink_counted,
    bool want_mask_gradient) {
  const Tensor query = with_adjacent_columns(query_), key = with_adjacent_columns(key_);
  const Tensor value = with_adjacent_columns(value_), upstream = with_adjacent_columns(upstream_);
  const Tensor output = with_adjacent_columns(output_);
  const MaybeTensor sink = plain(sink_);
  Problem problem = describe(query, key, value.size(3), mask, sink, scale, softcap, left, right, offset, sink_counted);
  problem.value = strided(value);
  const auto options = query.options().dtype(statistics_type(query));
  const Tensor query_gradient = at::empty(query.sizes(), query.options());
  const Tensor key_gradient = at::empty(key.sizes(), key.options());
  const Tensor value_gradient = at::empty(value.sizes(), value.options());
  const Tensor mask_gradient = want_mask_gradient
      ? at::zeros({query.size(0), query.size(1), query.size(2), key.size(2)}, options)
      : at::empty({0}, options);
  const Tensor sink_rows = sink ? at::empty(query.sizes().slice(0, 3), options) : at::empty({0}, options);
  MaybeTensor rows[8] = {beta, logmass, maximum, mass, c0, mu0, c1, mu1};
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    Backward<T> backward{
        problem, strided(upstream), strided(output), row_inputs<T>(rows), query_gradient.data_ptr(),
        key_gradient.data_ptr(), value_gradient.data_ptr()};
    if (want_mask_gradient) backward.mask_gradient = mask_gradient.data_ptr<T>();
    if (sink) backward.sink_gradient = sink_rows.data_ptr<T>();
    backward.run();
  };
  query.scalar_type() == at::kDouble ? run(0.) : run(0.f);
  const Tensor sink_gradient = sink ? sink_rows.sum({0, 2}).to(sink_->scalar_type()) : sink_rows;
  return {query_gradient, key_gradient, value_gradient, mask_gradient, sink_gradient};
}

// dL/dbeta of each row, and mean and variance of its logits under the tempered weights.
std::tuple<Tensor, Tensor, Tensor> row_gradient(
    const Tensor& upstream_, const Tensor& query_, const Tensor& key_, const Tensor& value_, const MaybeTensor& mask,
    const MaybeTensor& sink_, const Tensor& output_, const Tensor& beta, const Tensor& logmass, const Tensor& maximum,
    double scale, double softcap, int64_t left, int64_t right, int64_t offset, bool sink_counted) {
  const Tensor query = with_adjacent_columns(query_), key = with_adjacent_columns(key_);
  const Tensor value = with_adjacent_columns(value_), upstream = with_adjacent_columns(upstream_);
  const Tensor output = with_adjacent_columns(output_);
  const MaybeTensor sink = plain(sink_);
  Problem problem = describe(query, key, value.size(3), mask, sink, scale, softcap, left, right, offset, sink_counted);
  problem.value = strided(value);
  const auto options = query.options().dtype(statistics_type(query));
  const auto shape = query.sizes().slice(0, 3);
  const Tensor gradient = at::empty(shape, options), mean = at::empty(shape, options), variance = at::empty(shape, options);
  MaybeTensor rows[8] = {beta, logmass, maximum};
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    RowGradient<T>{problem, strided(upstream), strided(output), row_inputs<T>(rows), gradient.data_ptr<T>(),
                   mean.data_ptr<T>(), variance.data_ptr<T>()}
        .run();
  };
  query.scalar_type() == at::kDouble ? run(0.) : run(0.f);
  return {gradient, mean, variance};
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  const auto unlocked = pybind11::call_guard<pybind11::gil_scoped_release>();
  module.def("forward", &forward, unlocked);
  module.def("statistics", &statistics, unlocked);
  module.def("backward", &backward, unlocked);
  module.def("row_gradient", &row_gradient, unlocked);
}
