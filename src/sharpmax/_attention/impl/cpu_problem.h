// What is asked of the kernels: tensors as addresses and strides, the visible keys of each row, and the policies.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "cpu_vector.h"

namespace sharpmax {

enum class Scalar { float32, float64, float16, bfloat16, boolean };

enum class Policy : int64_t { given, constant, ramps, polynomial, log_length, entropy_target, hard };

// A [batch, head, row, column] tensor; columns lie side by side except in a mask.
struct Strided {
  const void* data = nullptr;
  Scalar scalar = Scalar::float32;
  int64_t batch = 0, head = 0, row = 0, column = 1;
};

struct Problem {
  int64_t batches, query_heads, key_heads, queries, keys, width, value_width;
  Strided query, key, value, mask;
  bool masked = false;
  const float* sink32 = nullptr; // one of the two where there is a sink
  const double* sink64 = nullptr;
  bool sink_counted = true;
  double scale = 1, softcap = 0;
  int64_t left = -1, right = -1, offset = 0;

  Policy policy = Policy::constant;
  const double* parameters = nullptr;
  int64_t parameter_stride = 0; // from head to head; 0 where all heads share
  int64_t parameter_count = 0;

  int64_t group() const { return key_heads ? query_heads / key_heads : 0; }
  bool has_sink() const { return sink32 || sink64; }
  double sink(int64_t head) const { return sink32 ? sink32[head] : sink64[head]; }

  // The keys that row i may see by position alone: [first, last).
  void visible_range(int64_t i, int64_t& first, int64_t& last) const {
    const int64_t position = i + offset;
    first = left < 0 ? 0 : std::max<int64_t>(0, position - left);
    last = right < 0 ? keys : std::min<int64_t>(keys, position + right + 1);
    if (last <= first) first = last = 0;
  }
};

constexpr size_t kLargePage = 2 << 20;

// Memory for the length of a scope, aligned to cache lines.
template <class T> class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = (static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T) + 63) / 64 * 64;
    const bool large = bytes >= 2 * kLargePage;
    data_ = static_cast<T*>(std::aligned_alloc(large ? kLargePage : 64, bytes));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    // Fewer page faults and fewer misses of the address cache; whether it is granted does not matter.
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

// Asks for memory that will be read soon. It may lie past the end of an array: nothing happens then.
SHARPMAX_INLINE void prefetch(const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 3);
}
SHARPMAX_INLINE void prefetch_to_write(const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 1, 2);
}

SHARPMAX_INLINE float widen(uint16_t bfloat) {
  const uint32_t bits = static_cast<uint32_t>(bfloat) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Copies `count` numbers that lie side by side, converting them.
template <class T> inline void convert(Scalar scalar, const void* from, int64_t count, T* to) {
  switch (scalar) {
    case Scalar::float32: {
      const float* source = static_cast<const float*>(from);
      for (int64_t n = 0; n < count; ++n) to[n] = static_cast<T>(source[n]);
      break;
    }
    case Scalar::float64: {
      const double* source = static_cast<const double*>(from);
      for (int64_t n = 0; n < count; ++n) to[n] = static_cast<T>(source[n]);
      break;
    }
    case Scalar::bfloat16: {
      const uint16_t* source = static_cast<const uint16_t*>(from);
      for (int64_t n = 0; n < count; ++n) to[n] = widen(source[n]);
      break;
    }
    case Scalar::float16: {
      const c10::Half* source = static_cast<const c10::Half*>(from);
      int64_t n = 0;
#if defined(__F16C__)
      if constexpr (sizeof(T) == sizeof(float))
        for (; n + 8 <= count; n += 8)
          _mm256_storeu_ps(to + n, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + n))));
#endif
      for (; n < count; ++n) to[n] = static_cast<T>(static_cast<float>(source[n]));
      break;
    }
    case Scalar::boolean: {
      const bool* source = static_cast<const bool*>(from);
      for (int64_t n = 0; n < count; ++n) to[n] = source[n];
      break;
    }
  }
}

template <class T> inline void convert_back(Scalar scalar, const T* from, int64_t count, void* to) {
  switch (scalar) {
    case Scalar::float32:
      for (int64_t n = 0; n < count; ++n) static_cast<float*>(to)[n] = static_cast<float>(from[n]);
      break;
    case Scalar::float64:
      for (int64_t n = 0; n < count; ++n) static_cast<double*>(to)[n] = static_cast<double>(from[n]);
      break;
    case Scalar::bfloat16:
      for (int64_t n = 0; n < count; ++n) static_cast<c10::BFloat16*>(to)[n] = static_cast<float>(from[n]);
      break;
    case Scalar::float16:
      for (int64_t n = 0; n < count; ++n) static_cast<c10::Half*>(to)[n] = static_cast<float>(from[n]);
      break;
    case Scalar::boolean:
      break;
  }
}

inline int64_t bytes_of(Scalar scalar) {
  switch (scalar) {
    case Scalar::float32: return 4;
    case Scalar::float64: return 8;
    case Scalar::boolean: return 1;
    default: return 2;
  }
}

template <class T> constexpr Scalar native_scalar() { return sizeof(T) == 8 ? Scalar::float64 : Scalar::float32; }

inline const char* address(const Strided& tensor, int64_t batch, int64_t head, int64_t row) {
  const int64_t element = batch * tensor.batch + head * tensor.head + row * tensor.row;
  return static_cast<const char*>(tensor.data) + element * bytes_of(tensor.scalar);
}

// Whether the rows lie at distances that make them compete for the same few places of the first-level cache.
inline bool rows_collide(const Strided& tensor) {
  const int64_t bytes = tensor.row * bytes_of(tensor.scalar);
  return bytes >= 1024 && bytes % 1024 == 0;
}

// Rows [first, first + count) of a tensor as numbers of type T: in place where they are of that type already, else converted
// into `scratch` ([count][columns]). `gather` copies them in any case.
template <class T>
inline const T* rows_of(
    const Strided& tensor, int64_t batch, int64_t head, int64_t first, int64_t count, int64_t columns, T* scratch,
    int64_t& stride, bool gather = false) {
  if (tensor.scalar == native_scalar<T>() && !gather) {
    stride = tensor.row;
    return reinterpret_cast<const T*>(address(tensor, batch, head, first));
  }
  stride = columns;
  for (int64_t n = 0; n < count; ++n)
    convert(tensor.scalar, address(tensor, batch, head, first + n), columns, scratch + n * columns);
  return scratch;
}

// What a block of the mask turned out to be for one row.
enum class Sight { open, mixed, closed };

template <class T, class Source>
inline Sight read_mask(const Source* from, int64_t stride, int count, double limit, T* bias) {
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  const T floor = static_cast<T>(limit);
  int closed = 0, open = 0;
  if (stride == 1) {
    for (int n = 0; n < count; ++n) {
      const T value = static_cast<T>(from[n]);
      bias[n] = value <= floor ? hidden : value;
    }
  } else {
    for (int n = 0; n < count; ++n) {
      const T value = static_cast<T>(from[n * stride]);
      bias[n] = value <= floor ? hidden : value;
    }
  }
  for (int n = 0; n < count; ++n) {
    closed += bias[n] == hidden;
    open += bias[n] == T(0);
  }
  return closed == count ? Sight::closed : open == count ? Sight::open : Sight::mixed;
}

// Reads the mask of one row for `count` keys as numbers to add: -inf hides a key.
template <class T>
inline Sight mask_row(
    const Problem& problem, int64_t batch, int64_t head, int64_t row, int64_t first, int count, T* bias) {
  constexpr T hidden = -std::numeric_limits<T>::infinity();
  const Strided& mask = problem.mask;
  const char* from = address(mask, batch, head, row) + first * mask.column * bytes_of(mask.scalar);
  switch (mask.scalar) {
    case Scalar::boolean: {
      const uint8_t* source = reinterpret_cast<const uint8_t*>(from);
      int seen = 0;
      if (mask.column == 1) {
        for (int n = 0; n < count; ++n) bias[n] = source[n] ? T(0) : hidden;
        for (int n = 0; n < count; ++n) seen += source[n] != 0;
      } else {
        for (int n = 0; n < count; ++n) {
          const bool visible = source[n * mask.column];
          bias[n] = visible ? T(0) : hidden;
          seen += visible;
        }
      }
      return seen == 0 ? Sight::closed : seen == count ? Sight::open : Sight::mixed;
    }
    case Scalar::float32:
      return read_mask(reinterpret_cast<const float*>(from), mask.column, count,
                       0.5 * std::numeric_limits<float>::lowest(), bias);
    case Scalar::float64:
      return read_mask(reinterpret_cast<const double*>(from), mask.column, count,
                       0.5 * std::numeric_limits<double>::lowest(), bias);
    case Scalar::float16:
      return read_mask(reinterpret_cast<const c10::Half*>(from), mask.column, count, 0.5 * -65504., bias);
    case Scalar::bfloat16:
      return read_mask(reinterpret_cast<const c10::BFloat16*>(from), mask.column, count, 0.5 * -0x1.FEp127, bias);
  }
  return Sight::open;
}

// beta of a row from its entropy and count; the entropy target is solved elsewhere, it needs the row itself.
inline double inverse_temperature(const Problem& problem, int64_t head, double entropy, int64_t count) {
  const double* p = problem.parameters + head * problem.parameter_stride;
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
      // The guard is what the paper's code adds to each weight inside the logarithm.
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

} // namespace sharpmax
