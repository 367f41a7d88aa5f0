// Python bindings of the CPU kernels. The Python side has validated all arguments.
//
// The seventh result of `forward`, logmass, is log(sum over keys of exp(beta * (e - maximum))), sink included: the logarithm of
// the tempered sum *relative to beta * maximum*. The plain logarithm, beta * maximum + logmass, would lose digits in float32 that
// the backward pass needs when beta is large. It is -inf for a row without keys and finite for beta = inf.
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

// How many panels go over the keys together. One if the logits of one panel fit the second-level cache. Otherwise several panels
// share the cost of fetching or copying keys and values, as long as every thread has enough to do. The number of rows per task is
// limited, and with it the memory per thread: 6 MiB at 16384 keys in single precision.
template <class T> int panels_for(const Problem& problem) {
  constexpr int64_t cache = 800 << 10, rows = 96;
  const bool copied = problem.key.scalar != native_scalar<T>() || rows_collide(problem.key); // sharing pays off at any length
  if (!copied && problem.keys * Panel<T>::capacity * static_cast<int64_t>(sizeof(T)) <= cache) return 1;
  const int64_t fitting = std::clamp<int64_t>(rows / Panel<T>::capacity, 1, kMaximumPanels);
  const int64_t panels = Division<T>(problem, 1).tasks;
  return static_cast<int>(std::clamp<int64_t>(panels / (4 * at::get_num_threads()), 1, fitting));
}

using Settings = std::tuple<double, double, int64_t, int64_t, int64_t, bool>; // scale, softcap, left, right, offset, sink_counted

// A row-wise input as adjacent numbers of type T; null if absent.
template <class T> const T* rowwise(MaybeTensor& tensor) {
  if (!tensor) return nullptr;
  tensor = tensor->contiguous();
  return tensor->const_data_ptr<T>();
}

// What every entry point sets up: tensors in a layout that the kernels read, the problem, and how to allocate results.
struct Call {
  Tensor query, key, value;
  MaybeTensor sink;
  Problem problem;
  at::TensorOptions options; // of statistics

  Call(
      const Tensor& query_, const Tensor& key_, const Tensor* value_, const MaybeTensor& mask, const MaybeTensor& sink_,
      const Settings& settings)
      : query(with_adjacent_columns(query_)), key(with_adjacent_columns(key_)) {
    problem.batches = query.size(0);
    problem.query_heads = query.size(1);
    problem.queries = query.size(2);
    problem.width = query.size(3);
    problem.key_heads = key.size(1);
    problem.keys = key.size(2);
    problem.value_width = 0;
    problem.query = strided(query);
    problem.key = strided(key);
    if (value_) {
      value = with_adjacent_columns(*value_);
      problem.value_width = value.size(3);
      problem.value = strided(value);
    }
    if (mask) {
      problem.masked = true;
      problem.mask = strided(*mask);
    }
    if (sink_) {
      sink = (sink_->scalar_type() == at::kDouble ? *sink_ : sink_->to(at::kFloat)).contiguous();
      if (sink->scalar_type() == at::kDouble)
        problem.sink64 = sink->const_data_ptr<double>();
      else
        problem.sink32 = sink->const_data_ptr<float>();
    }
    std::tie(problem.scale, problem.softcap, problem.left, problem.right, problem.offset, problem.sink_counted) = settings;
    options = query.options().dtype(query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }

  Tensor rows() const { return at::empty(query.sizes().slice(0, 3), options); }
  Tensor counts() const { return at::empty(query.sizes().slice(0, 3), options.dtype(at::kLong)); }

  // Calls function(T()) with the type that the kernels compute in.
  template <class Function> void run(Function&& function) const {
    query.scalar_type() == at::kDouble ? function(0.) : function(0.f);
  }
};

// Statistics of rows, as tensors.
struct RowTensors {
  Tensor maximum, mass, moment, count;

  explicit RowTensors(const Call& call)
      : maximum(call.rows()), mass(call.rows()), moment(call.rows()), count(call.counts()) {}

  template <class T> Results<T> results() const {
    Results<T> results;
    results.maximum = maximum.data_ptr<T>();
    results.mass = mass.data_ptr<T>();
    results.moment = moment.data_ptr<T>();
    results.count = count.data_ptr<int64_t>();
    return results;
  }
};

template <class T> void attend(const Problem& problem, const T* given_beta, const Results<T>& results) {
  if (suits_decoding<T>(problem))
    Decoding<T>{problem, given_beta, results}.run();
  else
    attend_panels<T>(problem, given_beta, panels_for<T>(problem), results);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> statistics(
    const Tensor& query, const Tensor& key, const MaybeTensor& mask, const MaybeTensor& sink, const Settings& settings) {
  const Call call(query, key, nullptr, mask, sink, settings);
  const RowTensors rows(call);
  call.run([&](auto zero) { attend<decltype(zero)>(call.problem, nullptr, rows.results<decltype(zero)>()); });
  return {rows.maximum, rows.mass, rows.moment, rows.count};
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask, const MaybeTensor& sink,
    const MaybeTensor& beta_, int64_t policy, const Tensor& parameters_, const Settings& settings) {
  Call call(query, key, &value, mask, sink, settings);
  Problem& problem = call.problem;
  const Tensor parameters = parameters_.contiguous();
  problem.policy = static_cast<Policy>(policy);
  problem.parameters = parameters.const_data_ptr<double>();
  problem.parameter_count = parameters.size(1);
  problem.parameter_stride = parameters.size(0) > 1 ? parameters.size(1) : 0;
  const Tensor output =
      at::empty({problem.batches, problem.query_heads, problem.queries, problem.value_width}, query.options());
  const RowTensors rows(call);
  const Tensor beta = call.rows(), logmass = call.rows();
  MaybeTensor given = beta_;
  call.run([&](auto zero) {
    using T = decltype(zero);
    Results<T> results = rows.results<T>();
    results.output = output.data_ptr();
    results.beta = beta.data_ptr<T>();
    results.logmass = logmass.data_ptr<T>();
    attend<T>(problem, problem.policy == Policy::given ? rowwise<T>(given) : nullptr, results);
  });
  return {output, rows.maximum, rows.mass, rows.moment, rows.count, beta, logmass};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

// Gradients of query, key, value, of the mask before any reduction (empty unless wanted) and of the sink (empty unless given).
Gradients backward(
    const Tensor& upstream_, const MaybeTensor& of_logmass, const Tensor& query, const Tensor& key, const Tensor& value,
    const MaybeTensor& mask, const MaybeTensor& sink, const Tensor& output_, const Tensor& beta, const Tensor& logmass,
    const Tensor& maximum, const MaybeTensor& a0, const MaybeTensor& c0, const MaybeTensor& a1, const MaybeTensor& c1,
    const Settings& settings, bool want_mask_gradient) {
  const Call call(query, key, &value, mask, sink, settings);
  const Tensor upstream = with_adjacent_columns(upstream_), output = with_adjacent_columns(output_);
  const Tensor query_gradient = at::empty(query.sizes(), query.options());
  const Tensor key_gradient = at::empty(key.sizes(), key.options());
  const Tensor value_gradient = at::empty(value.sizes(), value.options());
  const Tensor mask_gradient = want_mask_gradient
      ? at::zeros({query.size(0), query.size(1), query.size(2), key.size(2)}, call.options)
      : at::empty({0}, call.options);
  const Tensor sink_rows = sink ? call.rows() : at::empty({0}, call.options);
  MaybeTensor rows[8] = {beta, logmass, maximum, of_logmass, a0, c0, a1, c1};
  call.run([&](auto zero) {
    using T = decltype(zero);
    const RowInputs<T> inputs{rowwise<T>(rows[0]), rowwise<T>(rows[1]), rowwise<T>(rows[2]), rowwise<T>(rows[3]),
                              rowwise<T>(rows[4]), rowwise<T>(rows[5]), rowwise<T>(rows[6]), rowwise<T>(rows[7])};
    Backward<T> backward{
        call.problem, strided(upstream), strided(output), inputs, query_gradient.data_ptr(), key_gradient.data_ptr(),
        value_gradient.data_ptr()};
    if (want_mask_gradient) backward.mask_gradient = mask_gradient.data_ptr<T>();
    if (sink) backward.sink_gradient = sink_rows.data_ptr<T>();
    backward.run();
  });
  const Tensor sink_gradient = sink ? sink_rows.sum({0, 2}).to(sink->scalar_type()) : sink_rows;
  return {query_gradient, key_gradient, value_gradient, mask_gradient, sink_gradient};
}

// dL/dbeta of each row, and mean and variance of its logits under the tempered weights.
std::tuple<Tensor, Tensor, Tensor> row_gradient(
    const Tensor& upstream_, const MaybeTensor& of_logmass, const Tensor& query, const Tensor& key, const Tensor& value,
    const MaybeTensor& mask, const MaybeTensor& sink, const Tensor& output_, const Tensor& beta, const Tensor& logmass,
    const Tensor& maximum, const Settings& settings) {
  const Call call(query, key, &value, mask, sink, settings);
  const Tensor upstream = with_adjacent_columns(upstream_), output = with_adjacent_columns(output_);
  const Tensor gradient = call.rows(), mean = call.rows(), variance = call.rows();
  MaybeTensor rows[4] = {beta, logmass, maximum, of_logmass};
  call.run([&](auto zero) {
    using T = decltype(zero);
    const RowInputs<T> inputs{rowwise<T>(rows[0]), rowwise<T>(rows[1]), rowwise<T>(rows[2]), rowwise<T>(rows[3])};
    Backward<T> backward{.problem = call.problem, .upstream = strided(upstream), .output = strided(output), .inputs = inputs};
    backward.by_beta = gradient.data_ptr<T>();
    backward.mean = mean.data_ptr<T>();
    backward.variance = variance.data_ptr<T>();
    backward.run_rows(panels_for<T>(call.problem));
  });
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
