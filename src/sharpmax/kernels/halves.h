// Products of numbers in bfloat16 by the processor's own instruction, which takes two at a time and sums in single precision. Twice
// as fast as converting them, and as exact, except that it takes numbers below the normal ones for zero.
#pragma once

#include "problem.h"

namespace sharpmax::SHARPMAX_VARIANT {

#if defined(__AVX512F__)

#define SHARPMAX_PAIRS __attribute__((target("avx512bf16")))

// sums + first of a * first of b + second of a * second of b, lane by lane; b is the same pair in all lanes.
#define SHARPMAX_ADD_PAIRS(sums, a, b) \
  (Vector<float>::Native) _mm512_dpbf16_ps((__m512)(sums), (__m512bh)(a), (__m512bh)_mm512_set1_epi32(static_cast<int>(b)))

SHARPMAX_INLINE uint32_t pair_at(const BFloat16* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

// logits[j][row] = factor * sum over d of keys[j][d] * query[d][row], for j < count. `query` is [pairs][row].
template <int vectors>
__attribute__((noinline)) SHARPMAX_PAIRS void multiply_halves(
    Rows<BFloat16> keys, int count, const uint32_t* query, int64_t pairs, float factor, float* logits) {
  using V = Vector<float>;
  constexpr int height = tile_height(vectors), rows = vectors * V::width;
  for (int first = 0; first < count; first += height) {
    const BFloat16* pointers[height];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) pointers[k] = keys[first + k < count ? first + k : count - 1];
    Tile<float, height, vectors> tile;
    tile.clear();
    for (int64_t d = 0; d < pairs; ++d) {
      Bits<float> operand[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) std::memcpy(&operand[v], query + d * rows + v * V::width, sizeof(operand[v]));
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k) {
        const uint32_t key = pair_at(pointers[k] + 2 * d);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) tile.sums[k][v] = SHARPMAX_ADD_PAIRS(tile.sums[k][v], operand[v], key);
      }
    }
    tile.each(logits + static_cast<int64_t>(first) * rows, rows, count - first, [factor](float* place, V sum) SHARPMAX_INLINE_LAMBDA {
      (factor * sum).store(place);
    });
  }
}

// output[c][row] += sum over n of values[n][c] * weights[n][row], for c < width and n < count. The weights are rounded to bfloat16,
// as the output is. Needs room for one more value and its weights, which it overwrites, and in `pairs` for half as many lines.
template <int vectors>
__attribute__((noinline)) SHARPMAX_PAIRS void accumulate_halves(
    const BFloat16** values, float* weights, int count, int64_t width, uint32_t* pairs, float* output) {
  using V = Vector<float>;
  using Whole = Bits<float>;
  constexpr int height = tile_height(vectors), rows = vectors * V::width;
  if (count % 2) {
    values[count] = values[count - 1];
    std::fill_n(weights + count * rows, rows, 0.f);
    ++count;
  }
  for (int n = 0; n < count; n += 2) {
    for (int v = 0; v < vectors; ++v) {
      float* place = weights + n * rows + v * V::width;
      const Whole one = (Whole)V::load(place).lanes + 0x8000, other = (Whole)V::load(place + rows).lanes + 0x8000;
      V{(V::Native)((one >> 16 & 0xffff) | (other & static_cast<int>(0xffff0000)))}.store(weights + n / 2 * rows + v * V::width);
    }
    uint32_t* line = pairs + n / 2 * width;
    for (int64_t c = 0; c < width; ++c)
      line[c] = values[n][c].bits | static_cast<uint32_t>(values[n + 1][c].bits) << 16;
  }
  for (int64_t first = 0; first < width; first += height) {
    int64_t column[height];
    for (int k = 0; k < height; ++k) column[k] = first + k < width ? first + k : width - 1;
    Tile<float, height, vectors> tile;
    tile.clear();
    for (int n = 0; n < count / 2; ++n) {
      const uint32_t* line = pairs + n * width;
      typename V::Native operand[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) operand[v] = V::load(weights + n * rows + v * V::width).lanes;
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k) {
        const uint32_t value = line[column[k]];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) tile.sums[k][v] = SHARPMAX_ADD_PAIRS(tile.sums[k][v], operand[v], value);
      }
    }
    tile.add_to(output + first * rows, rows, width - first);
  }
}

// Rounds lines of `rows` numbers to bfloat16, as pairs: [line][stride / 2]. `stride` is a multiple of the vector's width. What
// follows the last row of a line is zero.
inline __attribute__((noinline)) SHARPMAX_PAIRS void round_to_pairs(
    const float* lines, int count, int rows, int stride, uint32_t* pairs) {
  for (int n = 0; n < count; ++n) {
    uint32_t* to = pairs + n * (stride / 2);
    for (int r = 0; r < stride; r += 16) {
      const auto rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(lines + n * stride + r));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + r / 2), rounded);
    }
    if (rows % 2) to[rows / 2] &= 0xffff;
  }
}

// sums[n][c] += sum over r of tile[n][r] * dense[r][c], for n < count and `vectors` vectors of columns c. Two rows r are a pair, in
// `tile` [n][pair] and in `dense` [pair][c].
template <int vectors>
SHARPMAX_PAIRS inline void accumulate_column_pairs(
    const uint32_t* tile, int64_t tile_stride, int count, const uint32_t* dense, int pairs, int64_t stride, float* sums) {
  constexpr int height = tile_height(2);
  for (int first = 0; first < count; first += height) {
    const uint32_t* factors[height];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) factors[k] = tile + (first + k < count ? first + k : count - 1) * tile_stride;
    Tile<float, height, vectors> part;
    part.clear();
    const uint32_t* from = dense;
    for (int r = 0; r < pairs; ++r, from += stride) {
      Bits<float> operand[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) std::memcpy(&operand[v], from + v * Vector<float>::width, sizeof(operand[v]));
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) part.sums[k][v] = SHARPMAX_ADD_PAIRS(part.sums[k][v], operand[v], factors[k][r]);
    }
    part.add_to(sums + first * stride, stride, count - first);
  }
}

// The same for all columns; `width` is a multiple of the vector's width.
inline __attribute__((noinline)) SHARPMAX_PAIRS void accumulate_outer_pairs(
    const uint32_t* tile, int64_t tile_stride, int count, const uint32_t* dense, int pairs, int64_t width, float* sums) {
  constexpr int lanes = Vector<float>::width;
  int64_t column = 0;
  for (; column + 2 * lanes <= width; column += 2 * lanes)
    accumulate_column_pairs<2>(tile, tile_stride, count, dense + column, pairs, width, sums + column);
  for (; column < width; column += lanes)
    accumulate_column_pairs<1>(tile, tile_stride, count, dense + column, pairs, width, sums + column);
}

#undef SHARPMAX_ADD_PAIRS
#undef SHARPMAX_PAIRS

#else

// No such instruction: never called.
template <int vectors> void multiply_halves(Rows<BFloat16>, int, const uint32_t*, int64_t, float, float*) {}
template <int vectors> void accumulate_halves(const BFloat16**, float*, int, int64_t, uint32_t*, float*) {}
inline void round_to_pairs(const float*, int, int, int, uint32_t*) {}
inline void accumulate_outer_pairs(const uint32_t*, int64_t, int, const uint32_t*, int, int64_t, float*) {}

#endif

// Whether all numbers of a tensor in bfloat16 are normal ones or zero; unless they have to be `finite`, also infinite or NaN.
inline bool is_normal(
    const Strided& tensor, int64_t batches, int64_t heads, int64_t rows, int64_t columns, bool finite = false) {
  for (int64_t batch = 0; batch < batches; ++batch)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < rows; ++row) {
        const auto* from = reinterpret_cast<const uint16_t*>(address(tensor, batch, head, row));
        uint16_t found = 0;
        for (int64_t c = 0; c < columns; ++c) {
          found |= static_cast<uint16_t>(!(from[c] & 0x7f80) & ((from[c] & 0x7f) != 0));
          found |= static_cast<uint16_t>(finite & ((from[c] & 0x7f80) == 0x7f80));
        }
        if (found) return false;
      }
  return true;
}

// Whether products in bfloat16 give what products in single precision give, and pay off. Logits below the normal numbers may count
// if beta or the scale is huge.
inline bool suits_halves(const Problem& problem, const float* beta, bool finite = false) {
  constexpr double huge = 1e20;
  constexpr int64_t least = 64; // rows that share their keys
  if (problem.query.scalar != Scalar::bfloat16 || problem.width % 2 || problem.group() * problem.queries < least) return false;
  if (std::abs(problem.scale) > 1e10 || problem.policy == Policy::hard) return false;
  const int64_t heads = problem.parameter_stride ? problem.query_heads : 1;
  for (int64_t head = 0; head < heads; ++head) {
    const double* parameters = problem.parameters_of(head);
    if (problem.policy == Policy::constant && problem.parameters && parameters[0] > huge) return false;
    if (problem.policy == Policy::entropy_target && parameters[1] > huge) return false;
  }
  const int64_t rows = problem.batches * problem.query_heads * problem.queries;
  if (beta && !std::all_of(beta, beta + rows, [](float each) { return each < huge; })) return false;
  return is_normal(problem.query, problem.batches, problem.query_heads, problem.queries, problem.width, finite) &&
      is_normal(problem.key, problem.batches, problem.key_heads, problem.keys, problem.width, finite) &&
      is_normal(problem.value, problem.batches, problem.key_heads, problem.keys, problem.value_width, finite);
}

// The same of gradients, whose zeros must hide what is not seen. `upstream` is the gradient of the output.
inline bool gradients_suit_halves(const Problem& problem, const Strided& upstream, const float* beta) {
  return problem.value_width % 2 == 0 && suits_halves(problem, beta, true) &&
      is_normal(upstream, problem.batches, problem.query_heads, problem.queries, problem.value_width, true);
}

} // namespace sharpmax::SHARPMAX_VARIANT
