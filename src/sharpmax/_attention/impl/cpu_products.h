// The matrix products, as register tiles. A panel's rows lie along the vector lanes (its matrices are transposed: [key][row],
// [width][row]), so that the keys and values are read in their natural layout, one number broadcast at a time, and row-wise
// maxima and sums need no reduction across lanes.
#pragma once

#include "cpu_vector.h"

namespace sharpmax {

// How many keys (or columns) a tile holds beside `vectors` vectors of rows.
constexpr int tile_height(int vectors) { return kAccumulators / vectors; }

// logits[j][row] = sum over d of keys[j][d] * query[d][row], for j < count. `query` is [width][vectors * lanes].
template <class T, int vectors>
__attribute__((noinline)) void multiply_keys(
    const T* keys, int64_t key_stride, int count, const T* query, int64_t width, T* logits) {
  using V = Vector<T>;
  constexpr int height = tile_height(vectors);
  constexpr int rows = vectors * V::width;
  for (int first = 0; first < count; first += height) {
    const T* pointers[height];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) {
      // Past the end the last key is read again; its copies are not stored.
      const int key = first + k < count ? first + k : count - 1;
      pointers[k] = keys + key * key_stride;
    }
    typename V::Native sums[height][vectors];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k)
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sums[k][v] = typename V::Native{};
    const T* q = query;
#pragma GCC unroll 2
    for (int64_t d = 0; d < width; ++d, q += rows) {
      typename V::Native operand[vectors];
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) operand[v] = V::load(q + v * V::width).lanes;
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k) {
        const T factor = pointers[k][d];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) sums[k][v] += factor * operand[v];
      }
    }
    T* to = logits + static_cast<int64_t>(first) * rows;
    if (first + height <= count) {
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) V{sums[k][v]}.store(to + k * rows + v * V::width);
    } else {
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k)
        if (first + k < count)
#pragma GCC unroll 3
          for (int v = 0; v < vectors; ++v) V{sums[k][v]}.store(to + k * rows + v * V::width);
    }
  }
}

// output[c][row] += sum over n of values[n][c] * weights[n][row], for c < width and n < count: values by their addresses, so
// that keys without weight can be left out. The sum of a block is formed before it is added: blockwise summation keeps the
// rounding error of long rows small.
template <class T, int vectors>
__attribute__((noinline)) void accumulate_values(
    const T* const* values, const T* weights, int count, int64_t width, T* output) {
  using V = Vector<T>;
  constexpr int height = tile_height(vectors);
  constexpr int rows = vectors * V::width;
  for (int64_t first = 0; first < width; first += height) {
    typename V::Native sums[height][vectors];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k)
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) sums[k][v] = typename V::Native{};
    const T* w = weights;
    if (first + height <= width) {
#pragma GCC unroll 2
      for (int n = 0; n < count; ++n, w += rows) {
        const T* value = values[n] + first;
        typename V::Native operand[vectors];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) operand[v] = V::load(w + v * V::width).lanes;
#pragma GCC unroll 24
        for (int k = 0; k < height; ++k) {
          const T factor = value[k];
#pragma GCC unroll 3
          for (int v = 0; v < vectors; ++v) sums[k][v] += factor * operand[v];
        }
      }
    } else {
      int64_t column[height];
      for (int k = 0; k < height; ++k) column[k] = first + k < width ? first + k : width - 1;
      for (int n = 0; n < count; ++n, w += rows) {
        typename V::Native operand[vectors];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) operand[v] = V::load(w + v * V::width).lanes;
#pragma GCC unroll 24
        for (int k = 0; k < height; ++k) {
          const T factor = values[n][column[k]];
#pragma GCC unroll 3
          for (int v = 0; v < vectors; ++v) sums[k][v] += factor * operand[v];
        }
      }
    }
    T* to = output + first * rows;
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k)
      if (first + k < width)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; ++v) {
          T* place = to + k * rows + v * V::width;
          (V::load(place) + V{sums[k][v]}).store(place);
        }
  }
}

// sums[n][c] += sum over r < rows of tile[n][r] * dense[r][c], for n < count and c < width, a multiple of the vector's width.
// Both `dense` and `sums` have rows of `stride` numbers.
template <class T, int vectors>
SHARPMAX_INLINE void accumulate_columns(
    const T* tile, int64_t tile_stride, int count, const T* dense, int rows, int64_t stride, T* sums) {
  using V = Vector<T>;
  constexpr int height = tile_height(2);
  for (int first = 0; first < count; first += height) {
    const T* factors[height];
    typename V::Native part[height][vectors];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) {
      factors[k] = tile + (first + k < count ? first + k : count - 1) * tile_stride;
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) part[k][v] = typename V::Native{};
    }
    const T* from = dense;
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r, from += stride) {
      typename V::Native operand[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) operand[v] = V::load(from + v * V::width).lanes;
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k) {
        const T factor = factors[k][r];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) part[k][v] += factor * operand[v];
      }
    }
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k)
      if (first + k < count)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
          T* place = sums + (first + k) * stride + v * V::width;
          (V::load(place) + V{part[k][v]}).store(place);
        }
  }
}

template <class T>
__attribute__((noinline)) void accumulate_outer(
    const T* tile, int64_t tile_stride, int count, const T* dense, int rows, int64_t width, int64_t stride, T* sums) {
  constexpr int lanes = Vector<T>::width;
  int64_t column = 0;
  for (; column + 2 * lanes <= width; column += 2 * lanes)
    accumulate_columns<T, 2>(tile, tile_stride, count, dense + column, rows, stride, sums + column);
  for (; column < width; column += lanes)
    accumulate_columns<T, 1>(tile, tile_stride, count, dense + column, rows, stride, sums + column);
}

} // namespace sharpmax
