// The input of the kernels: tensors as addresses and strides, the visible keys of each row, and the policies.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "half.h"
#include "products.h"
#include "sharpmax.h"

namespace sharpmax::SHARPMAX_VARIANT {

enum class Scalar : int64_t { float32, float64, float16, bfloat16, boolean }; // as enum sharpmax_type

enum class Policy : int64_t { given, constant, ramps, polynomial, log_length, entropy_target, hard }; // as enum sharpmax_form

// An array [batch, head, row, column] with the type of its numbers.
struct Strided : sharpmax_array {
  Scalar scalar = Scalar::float32;

  Strided() : sharpmax_array{} {}
  Strided(const sharpmax_array& array, int64_t type) : sharpmax_array(array), scalar(static_cast<Scalar>(type)) {}
};

struct Problem {
  int64_t batches, query_heads, key_heads, queries, keys, width, value_width;
  Strided query, key, value, mask;
  bool masked;
  const void* sinks;
  bool sink_counted;
  double scale, softcap;
  int64_t left, right, offset, threads;
  sharpmax_parallel parallel;

  Policy policy = Policy::constant;
  const double* parameters = nullptr;
  int64_t parameter_stride = 0; // from head to head; 0 if all heads share them
  int64_t parameter_count = 0;
  bool halves = false; // whether products are taken in bfloat16, the type of query, key and value

  explicit Problem(const sharpmax_problem& given)
      : batches(given.batches), query_heads(given.query_heads), key_heads(given.key_heads), queries(given.queries),
        keys(given.keys), width(given.width), value_width(given.value_width), query(given.query, given.type),
        key(given.key, given.type), value(given.value, given.type), mask(given.mask, given.mask_type),
        masked(given.mask.data != nullptr), sinks(given.sink), sink_counted(given.sink_counted != 0), scale(given.scale),
        softcap(given.softcap), left(given.left), right(given.right), offset(given.offset), threads(given.threads),
        parallel(given.parallel) {}

  int64_t group() const { return key_heads ? query_heads / key_heads : 0; }
  bool has_sink() const { return sinks != nullptr; }
  double sink(int64_t head) const {
    return query.scalar == Scalar::float64 ? static_cast<const double*>(sinks)[head] : static_cast<const float*>(sinks)[head];
  }
  // The sink that counts among the keys of a row, or -inf.
  double counted_sink(int64_t head) const {
    return has_sink() && sink_counted ? sink(head) : -std::numeric_limits<double>::infinity();
  }
  // What queries are multiplied by before the product; with a softcap, the scale is applied after it.
  double query_factor() const { return softcap > 0 ? 1. : scale; }
  const double* parameters_of(int64_t head) const { return parameters + head * parameter_stride; }
  // The place of a row in results, [batch, head, row].
  int64_t place(int64_t batch, int64_t head, int64_t row) const { return (batch * query_heads + head) * queries + row; }

  // The keys that row i may see by position alone: [first, last).
  void visible_range(int64_t i, int64_t& first, int64_t& last) const {
    const int64_t position = i + offset;
    first = left < 0 ? 0 : std::max<int64_t>(0, position - left);
    last = right < 0 ? keys : std::min<int64_t>(keys, position + right + 1);
    if (last <= first) first = last = 0;
  }
};

constexpr size_t kLargePage = 2 << 20;

// Memory that lives as long as its scope, aligned to cache lines.
template <class T> class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = (static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T) + 63) / 64 * 64;
    const bool large = bytes >= 2 * kLargePage;
    data_ = static_cast<T*>(std::aligned_alloc(large ? kLargePage : 64, bytes));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    // Fewer page faults and fewer TLB misses; the kernel may ignore the request.
    if (large) madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  T* get() const { return data_; }
  T& operator[](int64_t index) const { return data_[index]; }

 private:
  T* data_;
};

// Calls function(Type()) with the C++ type of a scalar.
template <class Function> SHARPMAX_INLINE auto with_type(Scalar scalar, Function&& function) {
  switch (scalar) {
    case Scalar::float32: return function(float());
    case Scalar::float64: return function(double());
    case Scalar::float16: return function(Half{});
    case Scalar::bfloat16: return function(BFloat16{});
    default: return function(uint8_t()); // a boolean
  }
}

inline int64_t bytes_of(Scalar scalar) {
  return with_type(scalar, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); });
}

// Copies `count` adjacent numbers and converts them.
template <class T> inline void convert(Scalar scalar, const void* from, int64_t count, T* to) {
  with_type(scalar, [&](auto zero) { copy_numbers(static_cast<const decltype(zero)*>(from), count, to); });
}

template <class T> inline void convert_back(Scalar scalar, const T* from, int64_t count, void* to) {
  with_type(scalar, [&](auto zero) { copy_numbers(from, count, static_cast<decltype(zero)*>(to)); });
}

template <class T> constexpr Scalar native_scalar() { return sizeof(T) == 8 ? Scalar::float64 : Scalar::float32; }

inline const char* address(const Strided& tensor, int64_t batch, int64_t head, int64_t row) {
  const int64_t element = batch * tensor.batch + head * tensor.head + row * tensor.row;
  return static_cast<const char*>(tensor.data) + element * bytes_of(tensor.scalar);
}

inline char* address(const sharpmax_writable& tensor, Scalar scalar, int64_t batch, int64_t head, int64_t row) {
  const int64_t element = batch * tensor.batch + head * tensor.head + row * tensor.row;
  return static_cast<char*>(tensor.data) + element * bytes_of(scalar);
}

// Whether the distance between rows makes them compete for the same few lines of the first-level cache.
inline bool rows_collide(const Strided& tensor) {
  const int64_t bytes = tensor.row * bytes_of(tensor.scalar);
  return bytes >= 1024 && bytes % 1024 == 0;
}

// Rows [first, first + count) of a tensor as numbers of type T: in place if they have that type, otherwise converted into
// `scratch` ([count][columns]). `gather` always copies them.
template <class T>
inline Rows<T> rows_of(
    const Strided& tensor, int64_t batch, int64_t head, int64_t first, int64_t count, int64_t columns, T* scratch,
    bool gather = false) {
  if (tensor.scalar == native_scalar<T>() && !gather)
    return {reinterpret_cast<const T*>(address(tensor, batch, head, first)), tensor.row};
  for (int64_t n = 0; n < count; ++n)
    convert(tensor.scalar, address(tensor, batch, head, first + n), columns, scratch + n * columns);
  return {scratch, columns};
}

// What a block of the mask means for one row: all keys visible, some, or none.
enum class Sight { open, mixed, closed };

// Reads the mask of one row for `count` keys as numbers to add: -inf hides a key. Numbers at or below half of the lowest hide it, too.
template <class T>
inline Sight mask_row(
    const Problem& problem, int64_t batch, int64_t head, int64_t row, int64_t first, int count, T* bias) {
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  const Strided& mask = problem.mask;
  const char* from = address(mask, batch, head, row) + first * mask.column * bytes_of(mask.scalar);
  with_type(mask.scalar, [&](auto zero) {
    using Source = decltype(zero);
    const Source* source = reinterpret_cast<const Source*>(from);
    const T floor = static_cast<T>(0.5 * kLowest<Source>);
    const auto read = [&](Source entry) {
      if constexpr (std::is_same_v<Source, uint8_t>) return entry ? T(0) : hidden;
      const T value = static_cast<T>(entry);
      return value <= floor ? hidden : value;
    };
    if (mask.column == 1)
      for (int n = 0; n < count; ++n) bias[n] = read(source[n]);
    else
      for (int n = 0; n < count; ++n) bias[n] = read(source[n * mask.column]);
  });
  int closed = 0, open = 0;
  for (int n = 0; n < count; ++n) {
    closed += bias[n] == hidden;
    open += bias[n] == T(0);
  }
  return closed == count ? Sight::closed : open == count ? Sight::open : Sight::mixed;
}

// beta of a row from its entropy and count. The entropy target is solved elsewhere: it needs the row itself.
inline double inverse_temperature(const Problem& problem, int64_t head, double entropy, int64_t count) {
  const double* p = problem.parameters_of(head);
  switch (problem.policy) {
    case Policy::constant:
      return p[0];
    case Policy::ramps: {
      double logarithm = p[0];
      for (int64_t k = 1; k + 2 < problem.parameter_count; k += 3)
        logarithm += p[k + 1] * std::min(std::max(entropy - p[k], 0.), p[k + 2]);
      return std::exp(std::max(logarithm, 0.));
    }
    case Policy::polynomial: {
      // The guard is the number that the paper's code adds to each weight inside the logarithm.
      const double guarded = entropy - p[1] * static_cast<double>(count);
      if (guarded <= p[0]) return 1;
      double value = 0;
      for (int64_t k = 2; k < problem.parameter_count; ++k) value = value * guarded + p[k];
      return std::max(value, 1.);
    }
    case Policy::log_length:
      return count > 1 ? std::max(1., p[0] * std::log(static_cast<double>(count))) : 1.;
    case Policy::hard:
      return std::numeric_limits<double>::infinity();
    default:
      return 1;
  }
}

} // namespace sharpmax::SHARPMAX_VARIANT
