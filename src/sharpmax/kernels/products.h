// The matrix products, as register tiles. The rows of a panel lie along the vector lanes: its matrices are transposed, [key][row]
// and [width][row]. So keys and values are read in their natural layout, one number broadcast at a time, and row-wise maxima and
// sums need no reduction across lanes.
#pragma once

#include <algorithm>

#include "half.h"

namespace sharpmax::SHARPMAX_VARIANT {

// Rows of numbers at equal distances.
template <class T> struct Rows {
  const T* data = nullptr;
  int64_t stride = 0;

  SHARPMAX_INLINE const T* operator[](int64_t n) const { return data + n * stride; }
  SHARPMAX_INLINE Rows from(int64_t n) const { return {data + n * stride, stride}; }
};

// How many keys (or columns) a tile holds beside `vectors` vectors of rows.
constexpr int tile_height(int vectors) { return kAccumulators / vectors; }

// Sums in registers: `height` lines of `vectors` vectors.
template <class T, int height, int vectors> struct Tile {
  using V = Vector<T>;
  typename V::Native sums[height][vectors];

  SHARPMAX_INLINE void clear() {
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k)
#pragma GCC unroll 12
      for (int v = 0; v < vectors; ++v) sums[k][v] = typename V::Native{};
  }

  // Adds factor(k) * line to each line k.
  template <class Number, class Factor> SHARPMAX_INLINE void add(const Number* line, Factor&& factor) {
    typename V::Native operand[vectors];
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) operand[v] = load_vector(line + v * V::width).lanes;
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) {
      const T scalar = factor(k);
#pragma GCC unroll 12
      for (int v = 0; v < vectors; ++v) sums[k][v] += scalar * operand[v];
    }
  }

  // Calls function(place, sum) for the vectors of the first `count` lines; place is the address in an array of that stride.
  template <class Function> SHARPMAX_INLINE void each(T* to, int64_t stride, int64_t count, Function&& function) const {
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k)
      if (k < count)
#pragma GCC unroll 12
        for (int v = 0; v < vectors; ++v) function(to + k * stride + v * V::width, V{sums[k][v]});
  }
  SHARPMAX_INLINE void store(T* to, int64_t stride, int64_t count) const {
    each(to, stride, count, [](T* place, V sum) SHARPMAX_INLINE_LAMBDA { sum.store(place); });
  }
  SHARPMAX_INLINE void add_to(T* to, int64_t stride, int64_t count) const {
    each(to, stride, count, [](T* place, V sum) SHARPMAX_INLINE_LAMBDA { (V::load(place) + sum).store(place); });
  }
};

constexpr int64_t kLine = 64; // bytes of a cache line

// Prefetches memory that will be read or written soon. Addresses past the end of an array do no harm.
SHARPMAX_INLINE void prefetch(const void* from) { __builtin_prefetch(from, 0, 3); }
SHARPMAX_INLINE void prefetch_to_write(const void* from) { __builtin_prefetch(from, 1, 2); }

// logits[j][row] = sum over d of keys[j][d] * query[d][row], for j < count. `query` is [width][vectors * lanes]. Meanwhile the next
// keys and the place of their logits are prefetched, a few lines at a time: the products leave room for it.
template <class T, int vectors>
__attribute__((noinline)) void multiply_keys(Rows<T> keys, int count, const T* query, int64_t width, T* logits) {
  constexpr int height = tile_height(vectors), rows = vectors * Vector<T>::width;
  constexpr int64_t step = kLine / sizeof(T);
  constexpr int lines = (height * vectors * kVectorBytes / kLine + 3) / 4; // to prefetch in each of four steps
  for (int first = 0; first < count; first += height) {
    const T* pointers[height];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) // past the end the last key is read again; its copies are not stored
      pointers[k] = keys[first + k < count ? first + k : count - 1];
    Tile<T, height, vectors> tile;
    tile.clear();
    const T* q = query;
    T* to = logits + static_cast<int64_t>(first) * rows;
    const char* ahead = reinterpret_cast<const char*>(to + height * rows);
    for (int64_t start = 0; start < width; start += step) {
#pragma GCC unroll 24
      for (int k = 0; k < height; ++k) prefetch(pointers[k] + start + height * keys.stride);
      if (start < 4 * step)
#pragma GCC unroll 6
        for (int line = 0; line < lines; ++line, ahead += kLine) prefetch_to_write(ahead);
      const int64_t stop = std::min(start + step, width);
#pragma GCC unroll 2
      for (int64_t d = start; d < stop; ++d, q += rows)
        tile.add(q, [&](int k) SHARPMAX_INLINE_LAMBDA { return pointers[k][d]; });
    }
    if (first + height <= count)
      tile.store(to, rows, height);
    else
      tile.store(to, rows, count - first);
  }
}

// output[c][row] += sum over n of values[n][c] * weights[n][row], for c < width and n < count. Values are given by their addresses,
// so that keys without weight can be left out. The sum of a block is formed before it is added: blockwise summation keeps the
// rounding error of long rows small. Meanwhile the next values, `distance` numbers ahead, and `lines` lines from `next` on are
// prefetched.
template <class T, int vectors>
__attribute__((noinline)) void accumulate_values(
    const T* const* values, const T* weights, int count, int64_t width, T* output, int64_t distance = 0,
    const T* next = nullptr, int64_t lines = 0) {
  constexpr int height = tile_height(vectors), rows = vectors * Vector<T>::width;
  constexpr int64_t step = kLine / sizeof(T);
  for (int64_t first = 0; first < width; first += height) {
    Tile<T, height, vectors> tile;
    tile.clear();
    const T* w = weights;
    const T* ahead = first / height * count < lines ? next + first / height * count * step : w;
    if (first + height <= width) {
#pragma GCC unroll 2
      for (int n = 0; n < count; ++n, w += rows) {
        const T* value = values[n] + first;
        prefetch(value + distance);
        prefetch(ahead);
        ahead += step;
        tile.add(w, [&](int k) SHARPMAX_INLINE_LAMBDA { return value[k]; });
      }
    } else {
      int64_t column[height];
      for (int k = 0; k < height; ++k) column[k] = first + k < width ? first + k : width - 1;
      for (int n = 0; n < count; ++n, w += rows)
        tile.add(w, [&](int k) SHARPMAX_INLINE_LAMBDA { return values[n][column[k]]; });
    }
    tile.add_to(output + first * rows, rows, width - first);
  }
}

// sums[n][c] += sum over r < rows of tile[n][r] * dense[r][c], for n < count and `vectors` vectors of columns c. Both `dense` and
// `sums` have rows of `stride` numbers.
template <class T, int vectors>
SHARPMAX_INLINE void accumulate_columns(
    const T* tile, int64_t tile_stride, int count, const T* dense, int rows, int64_t stride, T* sums) {
  constexpr int height = tile_height(2);
  for (int first = 0; first < count; first += height) {
    const T* factors[height];
#pragma GCC unroll 24
    for (int k = 0; k < height; ++k) factors[k] = tile + (first + k < count ? first + k : count - 1) * tile_stride;
    Tile<T, height, vectors> part;
    part.clear();
    const T* from = dense;
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r, from += stride)
      part.add(from, [&](int k) SHARPMAX_INLINE_LAMBDA { return factors[k][r]; });
    part.add_to(sums + first * stride, stride, count - first);
  }
}

// The same for all columns; `width` is a multiple of the vector's width.
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

} // namespace sharpmax::SHARPMAX_VARIANT
