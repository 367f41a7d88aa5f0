// Vectors of the processor's width, based on the vector extension of GCC and Clang. The same code serves AVX-512, AVX2 and, as the
// baseline, whatever the compiler takes vectors of 16 bytes to: SSE2, NEON.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

// The library holds the kernels once per instruction set, each in a namespace of its own.
#if defined(__AVX512F__)
#define SHARPMAX_VARIANT avx512
#elif defined(__AVX2__)
#define SHARPMAX_VARIANT avx2
#else
#define SHARPMAX_VARIANT baseline
#endif

namespace sharpmax::SHARPMAX_VARIANT {

#define SHARPMAX_INLINE inline __attribute__((always_inline))
#define SHARPMAX_INLINE_LAMBDA __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kAccumulators = 24; // of 32 registers; the rest hold operands
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kAccumulators = 12; // of 16 registers
#else
constexpr int kVectorBytes = 16;
constexpr int kAccumulators = 12;
#endif

template <class T> struct IntegerOf;
template <> struct IntegerOf<float> { using type = int32_t; };
template <> struct IntegerOf<double> { using type = int64_t; };
template <class T> using Integer = typename IntegerOf<T>::type;

template <class T> struct Vector {
  typedef T Native __attribute__((vector_size(kVectorBytes)));
  typedef Integer<T> Bits __attribute__((vector_size(kVectorBytes)));
  static constexpr int width = kVectorBytes / sizeof(T);

  Native lanes;

  static SHARPMAX_INLINE Vector load(const T* from) {
    Vector result;
    std::memcpy(&result.lanes, from, sizeof(Native));
    return result;
  }
  static SHARPMAX_INLINE Vector splat(T value) { return {value - Native{}}; }
  static SHARPMAX_INLINE Vector zero() { return {Native{}}; }
  SHARPMAX_INLINE void store(T* to) const { std::memcpy(to, &lanes, sizeof(Native)); }

  friend SHARPMAX_INLINE Vector operator+(Vector a, Vector b) { return {a.lanes + b.lanes}; }
  friend SHARPMAX_INLINE Vector operator-(Vector a, Vector b) { return {a.lanes - b.lanes}; }
  friend SHARPMAX_INLINE Vector operator*(Vector a, Vector b) { return {a.lanes * b.lanes}; }
  friend SHARPMAX_INLINE Vector operator/(Vector a, Vector b) { return {a.lanes / b.lanes}; }
  friend SHARPMAX_INLINE Vector operator*(T a, Vector b) { return {a * b.lanes}; }
  SHARPMAX_INLINE Vector& operator+=(Vector other) {
    lanes += other.lanes;
    return *this;
  }
};

template <class T> using Bits = typename Vector<T>::Bits;

// Comparisons give all ones or all zeros in each lane; a comparison with NaN is false.
template <class T> SHARPMAX_INLINE Bits<T> greater(Vector<T> a, Vector<T> b) { return a.lanes > b.lanes; }
template <class T> SHARPMAX_INLINE Bits<T> equal(Vector<T> a, Vector<T> b) { return a.lanes == b.lanes; }
template <class T> SHARPMAX_INLINE Vector<T> select(Bits<T> condition, Vector<T> yes, Vector<T> no) {
  return {condition ? yes.lanes : no.lanes};
}
template <class T> SHARPMAX_INLINE Bits<T> splat_integer(Integer<T> value) { return value - Bits<T>{}; }
template <class T> SHARPMAX_INLINE Bits<T> load_integer(const Integer<T>* from) {
  Bits<T> result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
template <class T> SHARPMAX_INLINE void store_integer(Integer<T>* to, Bits<T> value) {
  std::memcpy(to, &value, sizeof(value));
}

template <class T> SHARPMAX_INLINE bool any(Bits<T> condition) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)condition, (__m256i)condition);
#else
  Integer<T> all = 0;
  for (int lane = 0; lane < Vector<T>::width; ++lane) all |= condition[lane];
  return all != 0;
#endif
}

// The larger and the smaller of two; the second if either is NaN. GCC makes two instructions of the condition on AVX-512.
template <class T> SHARPMAX_INLINE Vector<T> larger(Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return {(typename Vector<T>::Native)_mm512_max_ps((__m512)a.lanes, (__m512)b.lanes)};
  else return {(typename Vector<T>::Native)_mm512_max_pd((__m512d)a.lanes, (__m512d)b.lanes)};
#else
  return {a.lanes > b.lanes ? a.lanes : b.lanes};
#endif
}
template <class T> SHARPMAX_INLINE Vector<T> smaller(Vector<T> a, Vector<T> b) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) return {(typename Vector<T>::Native)_mm512_min_ps((__m512)a.lanes, (__m512)b.lanes)};
  else return {(typename Vector<T>::Native)_mm512_min_pd((__m512d)a.lanes, (__m512d)b.lanes)};
#else
  return {a.lanes < b.lanes ? a.lanes : b.lanes};
#endif
}

// At this argument the exponential below is exactly zero, because its exponent field is 0.
template <class T> constexpr T kVanishing = sizeof(T) == 8 ? T(-708.2) : T(-87);

// In gradients, weights are taken for zero where their logarithm is below this: products with smaller ones may be below the normal
// numbers, and some processors take a hundred cycles for each of those.
template <class T> constexpr T kLost = sizeof(T) == 8 ? T(-600) : T(-64);

// The polynomial of 2^f for |f| <= 1/2, highest power first, and 1.5 * 2^mantissa + bias: adding it rounds to an integer in the
// low bits.
template <class T> struct PowerOfTwo;
template <> struct PowerOfTwo<float> {
  static constexpr int mantissa = 23;
  static constexpr float shift = 12582912.f + 127.f;
  static constexpr float coefficients[] = {
      0.0013264729489803397075f, 0.0096715126268152650662f, 0.055507337357965698806f, 0.24022242085776815155f,
      0.69314697760373126805f, 1.f};
};
template <> struct PowerOfTwo<double> {
  static constexpr int mantissa = 52;
  static constexpr double shift = 6755399441055744. + 1023.;
  static constexpr double coefficients[] = {
      4.4347689881545130422e-10, 7.0737831796434430344e-9, 1.0178199585982564525e-7, 1.3215435282711480784e-6,
      0.000015252733493097295251, 0.00015403530457111292226, 0.0013333558146774647157, 0.0096181291075941207025,
      0.055504108664820083139, 0.24022650695910131259, 0.69314718055994532581, 1.};
};

// exp(x) for kVanishing <= x <= 0, with a relative error of about 1e-7 + 1e-8 |x| (float) or 1e-16 (double). exp(0) is exactly 1,
// and NaN stays NaN: it survives the final multiplication. 2^(n - 1) is made by shifting the rounded exponent, bias included, into
// place. The polynomial is doubled in turn, so that the product is zero or a normal number.
template <class T> SHARPMAX_INLINE Vector<T> exp_bounded(Vector<T> x) {
  using Native = typename Vector<T>::Native;
  using Constants = PowerOfTwo<T>;
  constexpr T log2e = static_cast<T>(1.44269504088896340736), shift = Constants::shift - 1;
  const Native rounded = x.lanes * log2e + shift;
  const Native f = x.lanes * log2e - (rounded - shift);
  Native p = 2 * Constants::coefficients[0] - Native{};
  for (size_t k = 1; k < std::size(Constants::coefficients); ++k) p = p * f + 2 * Constants::coefficients[k];
  return {p * (Native)((Bits<T>)rounded << Constants::mantissa)};
}

// Raises arguments whose exponential vanishes, -inf included, to kVanishing; NaN stays.
template <class T> SHARPMAX_INLINE Vector<T> bounded(Vector<T> x) { return larger(Vector<T>::splat(kVanishing<T>), x); }

template <class T> SHARPMAX_INLINE Vector<T> exp_nonpositive(Vector<T> x) { return exp_bounded(bounded(x)); }

// tanh, as an odd polynomial near zero, where 1 - 2 / (exp(2|x|) + 1) would cancel.
SHARPMAX_INLINE Vector<float> hyperbolic_tangent(Vector<float> x) {
  using V = Vector<float>;
  const V::Native z = x.lanes * x.lanes;
  V::Native p = z * -0.00570498699798f + 0.0206390872493f;
  p = p * z - 0.0537397150875f;
  p = p * z + 0.133314421982f;
  p = p * z - 0.33333281942f;
  p = p * z * x.lanes + x.lanes;
  const V::Native magnitude = x.lanes < 0.f ? -x.lanes : x.lanes;
  const V decay = exp_nonpositive(V{-2.f * magnitude});
  const V::Native far = (1.f - decay.lanes) / (1.f + decay.lanes);
  const V::Native signed_far = x.lanes < 0.f ? -far : far;
  return {magnitude > 0.625f ? signed_far : p};
}

SHARPMAX_INLINE Vector<double> hyperbolic_tangent(Vector<double> x) {
  for (int lane = 0; lane < Vector<double>::width; ++lane) x.lanes[lane] = std::tanh(x.lanes[lane]);
  return x;
}

} // namespace sharpmax::SHARPMAX_VARIANT
