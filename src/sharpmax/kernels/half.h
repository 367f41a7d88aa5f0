// Numbers of 16 bits, which are only stored: they are converted before and after any arithmetic.
#pragma once

#include "vector.h"

namespace sharpmax::SHARPMAX_VARIANT {

SHARPMAX_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
SHARPMAX_INLINE float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The upper half of a float. Rounds to nearest, ties to even; every NaN becomes the same one.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit SHARPMAX_INLINE BFloat16(float value) {
    const uint32_t whole = bits_of(value), rounded = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
    bits = static_cast<uint16_t>((whole & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
  SHARPMAX_INLINE operator float() const { return float_of(static_cast<uint32_t>(bits) << 16); }
};

// IEEE half precision. Rounds to nearest, ties to even.
struct Half {
  uint16_t bits;

  Half() = default;
#if defined(__F16C__)
  explicit SHARPMAX_INLINE Half(float value) : bits(static_cast<uint16_t>(_cvtss_sh(value, 0))) {}
  SHARPMAX_INLINE operator float() const { return _cvtsh_ss(bits); }
#elif defined(__aarch64__)
  explicit SHARPMAX_INLINE Half(float value) {
    const __fp16 half = static_cast<__fp16>(value);
    std::memcpy(&bits, &half, sizeof(bits));
  }
  SHARPMAX_INLINE operator float() const {
    __fp16 half;
    std::memcpy(&half, &bits, sizeof(bits));
    return static_cast<float>(half);
  }
#else
  explicit SHARPMAX_INLINE Half(float value) {
    const uint32_t whole = bits_of(value), magnitude = whole & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) // NaN
      half = 0x7e00;
    else if (magnitude >= 0x47800000) // 2^16 and more
      half = 0x7c00;
    else if (magnitude < 0x38800000) // below 2^-14: adding 1/2 rounds to multiples of 2^-24
      half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    else // another bias of the exponent, and rounding, which may carry into it
      half = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    bits = static_cast<uint16_t>(half | (whole >> 16 & 0x8000));
  }
  SHARPMAX_INLINE operator float() const {
    const uint32_t magnitude = bits & 0x7fff, sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    uint32_t whole = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7c00) whole = 0x7f800000 | magnitude << 13;
    if (magnitude < 0x400) whole = bits_of(static_cast<float>(magnitude) * 0x1p-24f);
    return float_of(whole | sign);
  }
#endif
};

template <class From, class To> inline void copy_numbers(const From* from, int64_t count, To* to) {
  for (int64_t n = 0; n < count; ++n) to[n] = static_cast<To>(from[n]);
}

#if defined(__F16C__)
// Compilers do not find these instructions by themselves.
inline void copy_numbers(const Half* from, int64_t count, float* to) {
  int64_t n = 0;
  for (; n + 8 <= count; n += 8)
    _mm256_storeu_ps(to + n, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + n))));
  for (; n < count; ++n) to[n] = from[n];
}
inline void copy_numbers(const float* from, int64_t count, Half* to) {
  int64_t n = 0;
  for (; n + 8 <= count; n += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + n), _mm256_cvtps_ph(_mm256_loadu_ps(from + n), 0));
  for (; n < count; ++n) to[n] = static_cast<Half>(from[n]);
}
#endif

// As many numbers as a vector holds, converted in registers.
template <class T> SHARPMAX_INLINE Vector<T> load_vector(const T* from) { return Vector<T>::load(from); }
SHARPMAX_INLINE Vector<float> load_vector(const BFloat16* from) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return {(Vector<float>::Native)_mm512_slli_epi32(wide, 16)};
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return {(Vector<float>::Native)_mm256_slli_epi32(wide, 16)};
#else
  float numbers[Vector<float>::width];
  copy_numbers(from, Vector<float>::width, numbers);
  return Vector<float>::load(numbers);
#endif
}
SHARPMAX_INLINE Vector<float> load_vector(const Half* from) {
#if defined(__AVX512F__)
  return {(Vector<float>::Native)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
#elif defined(__F16C__)
  return {(Vector<float>::Native)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
#else
  float numbers[Vector<float>::width];
  copy_numbers(from, Vector<float>::width, numbers);
  return Vector<float>::load(numbers);
#endif
}

// The lowest finite number of a type.
template <class T> constexpr double kLowest = static_cast<double>(std::numeric_limits<T>::lowest());
template <> constexpr double kLowest<BFloat16> = -0x1.fep127;
template <> constexpr double kLowest<Half> = -65504.;

} // namespace sharpmax::SHARPMAX_VARIANT
