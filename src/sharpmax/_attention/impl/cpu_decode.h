// A few rows against many keys, as in decoding with a cache. There is little arithmetic for each key, so what counts is to read
// keys and values once, for all the rows that share them, and to spread the reading over the threads whatever the number of heads.
// Vectors lie along the width here. Keys are cut into chunks of fixed length; the chunks of a row are merged in their order, so
// that the result does not depend on the threads.
#pragma once

#include <vector>

#include "cpu_forward.h"

namespace sharpmax {

constexpr int kDecodeRows = 8;     // at most, of all heads that share their keys
constexpr int kDecodeTile = 4;     // rows that go over the keys together
constexpr int64_t kDecodeChunk = 512;
constexpr int kPrefetchKeys = 24;  // how far ahead of the arithmetic keys and values are fetched
constexpr int64_t kDecodeBytes = 4 << 20; // of logits that are kept for each thread

template <class T> SHARPMAX_INLINE T sum_of(typename Vector<T>::Native lanes) {
  // By halves: the additions of one step do not wait for each other.
  T parts[Vector<T>::width];
  std::memcpy(parts, &lanes, sizeof(lanes));
#pragma GCC unroll 5
  for (int half = Vector<T>::width / 2; half > 0; half /= 2)
#pragma GCC unroll 16
    for (int n = 0; n < half; ++n) parts[n] += parts[n + half];
  return parts[0];
}

#if defined(CPU_CAPABILITY_AVX2)
template <> SHARPMAX_INLINE float sum_of<float>(Vector<float>::Native lanes) {
  const __m256 all = (__m256)lanes;
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#endif

// logits[r][n] = query[r] · keys[n], for n < count.
template <class T, int rows>
__attribute__((noinline)) void dot_keys(
    const T* keys, int64_t key_stride, int count, int ahead, const T* const* query, int64_t width, T* const* logits) {
  using V = Vector<T>;
  constexpr int height = 12 / rows;
  const int64_t whole = width / V::width * V::width;
  for (int first = 0; first < count; first += height) {
    const T* pointers[height];
    typename V::Native sums[height][rows];
#pragma GCC unroll 12
    for (int k = 0; k < height; ++k) {
      const int key = first + k < count ? first + k : count - 1;
      pointers[k] = keys + key * key_stride;
      if (first + k < count && key < ahead) prefetch(pointers[k] + kPrefetchKeys * key_stride, width * sizeof(T));
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) sums[k][r] = typename V::Native{};
    }
    for (int64_t d = 0; d < whole; d += V::width) {
      typename V::Native operand[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) operand[r] = V::load(query[r] + d).lanes;
#pragma GCC unroll 12
      for (int k = 0; k < height; ++k) {
        const typename V::Native key = V::load(pointers[k] + d).lanes;
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) sums[k][r] += key * operand[r];
      }
    }
#pragma GCC unroll 12
    for (int k = 0; k < height; ++k) {
      if (first + k >= count) break;
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        T sum = sum_of<T>(sums[k][r]);
        for (int64_t d = whole; d < width; ++d) sum += pointers[k][d] * query[r][d];
        logits[r][first + k] = sum;
      }
    }
  }
}

// output[r][c] += sum over n of weights[n][r] * values[n][c] for `vectors` vectors of columns from `column` on.
template <class T, int rows, int vectors>
SHARPMAX_INLINE void blend_columns(
    const T* const* values, int count, int reach, const T* weights, int64_t column, T* output, int64_t output_stride) {
  using V = Vector<T>;
  typename V::Native sums[rows][vectors];
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) sums[r][v] = typename V::Native{};
  for (int n = 0; n < count; ++n) {
    const T* value = values[n] + column;
    if (n + kPrefetchKeys < reach)
      prefetch(values[n + kPrefetchKeys] + column, vectors * static_cast<int64_t>(sizeof(typename V::Native)));
    typename V::Native operand[vectors];
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) operand[v] = V::load(value + v * V::width).lanes;
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const T weight = weights[n * rows + r];
#pragma GCC unroll 12
      for (int v = 0; v < vectors; ++v) sums[r][v] += weight * operand[v];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 12
    for (int v = 0; v < vectors; ++v) {
      T* place = output + r * output_stride + column + v * V::width;
      (V::load(place) + V{sums[r][v]}).store(place);
    }
}

// A slab of values stays in the first-level cache while its columns are taken in turn.
template <class T, int rows>
__attribute__((noinline)) void blend_values(
    const T* const* values, int count, const T* weights, int64_t width, T* output, int64_t output_stride) {
  using V = Vector<T>;
  constexpr int vectors = 12 / rows < 8 ? 12 / rows : 8;
  constexpr int slab = kPrefetchKeys;
  for (int first = 0; first < count; first += slab) {
    const int here = std::min(slab, count - first), reach = count - first;
    const T* w = weights + static_cast<int64_t>(first) * rows;
    int64_t column = 0;
    for (; column + vectors * V::width <= width; column += vectors * V::width)
      blend_columns<T, rows, vectors>(values + first, here, reach, w, column, output, output_stride);
    for (; column + V::width <= width; column += V::width)
      blend_columns<T, rows, 1>(values + first, here, reach, w, column, output, output_stride);
    for (; column < width; ++column)
      for (int r = 0; r < rows; ++r) {
        T sum = 0;
        for (int n = 0; n < here; ++n) sum += w[n * rows + r] * values[first + n][column];
        output[r * output_stride + column] += sum;
      }
  }
}

template <class Function> SHARPMAX_INLINE void with_rows(int rows, Function&& function) {
  switch (rows) {
    case 1: function(std::integral_constant<int, 1>{}); break;
    case 2: function(std::integral_constant<int, 2>{}); break;
    case 3: function(std::integral_constant<int, 3>{}); break;
    default: function(std::integral_constant<int, 4>{}); break;
  }
}

// What one chunk of keys says of one row.
template <class T> struct ChunkStatistics {
  T maximum, mass, moment, total;
  int64_t count, infinite;
  bool invalid;
};

// Softcap, mask and window on the logits of one row, and their statistics. `logits` has room up to a whole vector.
template <class T>
inline ChunkStatistics<T> finish_chunk(
    const Problem& problem, const Panel<T>& panel, int r, int64_t batch, int64_t first, int count, T* logits, T* bias) {
  using V = Vector<T>;
  ChunkStatistics<T> result{-kInfinity<T>, 0, 0, 0, 0, 0, false};
  const int padded = (count + V::width - 1) / V::width * V::width;
  for (int n = count; n < padded; ++n) logits[n] = -kInfinity<T>;
  if (problem.softcap > 0) {
    cap_logits<T, 1>(logits, padded / V::width, problem.softcap, problem.scale);
    for (int n = count; n < padded; ++n) logits[n] = -kInfinity<T>;
  }
  const int64_t low = std::clamp<int64_t>(panel.first_key[r] - first, 0, count);
  const int64_t high = std::clamp<int64_t>(panel.last_key[r] - first, low, count);
  for (int64_t n = 0; n < low; ++n) logits[n] = -kInfinity<T>;
  for (int64_t n = high; n < count; ++n) logits[n] = -kInfinity<T>;
  if (problem.masked && mask_row(problem, batch, panel.head[r], panel.row[r], first, count, bias) != Sight::open)
    for (int64_t n = low; n < high; ++n) logits[n] = bias[n] == -kInfinity<T> ? bias[n] : logits[n] + bias[n];
  for (int64_t n = low; n < high; ++n) result.count += logits[n] != -kInfinity<T>;
  V peak = V::splat(-kInfinity<T>);
  for (int n = 0; n < padded; n += V::width) peak = larger(V::load(logits + n), peak);
  T maximum = kFloor<T>;
  for (int lane = 0; lane < V::width; ++lane) maximum = std::max(maximum, T(peak.lanes[lane]));
  V mass = V::zero(), moment = V::zero();
  const V top = V::splat(maximum);
  for (int n = 0; n < padded; n += V::width) {
    const V difference = bounded(V::load(logits + n) - top);
    const V weight = exp_bounded(difference);
    mass += weight;
    moment += difference * weight;
  }
  result.maximum = maximum;
  result.mass = sum_of<T>(mass.lanes);
  result.moment = sum_of<T>(moment.lanes);
  if (maximum == kInfinity<T> || std::isnan(result.mass)) {
    for (int n = 0; n < count; ++n) {
      result.infinite += logits[n] == kInfinity<T>;
      result.invalid |= std::isnan(logits[n]);
    }
    result.mass = result.moment = 0;
  }
  return result;
}

template <class T> inline void merge_chunk(Panel<T>& panel, int r, const ChunkStatistics<T>& chunk) {
  panel.infinite[r] += chunk.infinite;
  panel.invalid[r] |= chunk.invalid;
  panel.count[r] += chunk.count;
  if (chunk.maximum == kInfinity<T>) panel.maximum[r] = chunk.maximum;
  if (panel.maximum[r] == kInfinity<T> || chunk.mass == 0) return;
  const T maximum = std::max(panel.maximum[r], chunk.maximum);
  const T here = std::max(panel.maximum[r] - maximum, kVanishing<T>), there = std::max(chunk.maximum - maximum, kVanishing<T>);
  const T scale_here = std::exp(here), scale_there = std::exp(there);
  panel.moment[r] = scale_here * (panel.moment[r] + here * panel.mass[r]) + scale_there * (chunk.moment + there * chunk.mass);
  panel.mass[r] = scale_here * panel.mass[r] + scale_there * chunk.mass;
  panel.maximum[r] = maximum;
}

// The weights of a chunk for up to four rows, [kept key][row]; the addresses of the kept values; the totals.
template <class T, int rows>
inline int weigh_chunk(
    const Panel<T>& panel, int first_row, T* const* logits, int count, T threshold, const T* values,
    int64_t value_stride, T* weights, const T** kept, ChunkStatistics<T>* chunk) {
  using V = Vector<T>;
  T weight_rows[rows][V::width];
  V total[rows];
  for (int r = 0; r < rows; ++r) total[r] = V::zero();
  int number = 0;
  for (int n = 0; n < count; n += V::width) { // the logits are padded with -inf to a whole vector
    Bits<T> matters{};
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const V anchor = V::splat(panel.anchor[first_row + r]), factor = V::splat(panel.factor[first_row + r]);
      const V exponent = factor * (V::load(logits[r] + n) - anchor);
      matters |= greater(exponent, V::splat(threshold));
      const V weight = exp_nonpositive(exponent);
      total[r] += weight;
      weight.store(weight_rows[r]);
    }
    if (!any<T>(matters)) continue;
    const int here = std::min(V::width, count - n);
    for (int lane = 0; lane < here; ++lane) {
      for (int r = 0; r < rows; ++r) weights[number * rows + r] = weight_rows[r][lane];
      kept[number] = values + (n + lane) * value_stride;
      number += matters[lane] != 0;
    }
  }
  for (int r = 0; r < rows; ++r) chunk[r].total = sum_of<T>(total[r].lanes);
  return number;
}

template <class T> inline bool suits_decoding(const Problem& problem) {
  const int64_t rows = std::min<int64_t>(kDecodeRows, Panel<T>::capacity);
  return problem.group() * problem.queries <= rows && problem.policy != Policy::entropy_target;
}

// Statistics and, if `results.output` is given, attention.
template <class T> inline void decode(const Problem& problem, const T* given_beta, const Results<T>& results) {
  const int rows = static_cast<int>(problem.group() * problem.queries);
  const int64_t units = problem.batches * problem.key_heads;
  const int64_t chunks = (problem.keys + kDecodeChunk - 1) / kDecodeChunk;
  const int64_t padded_keys = chunks * kDecodeChunk;
  const bool attends = results.output != nullptr;
  const T threshold = negligible<T>(problem.keys);
  const T query_factor = problem.softcap > 0 ? T(1) : static_cast<T>(problem.scale);
  // All units at once would need memory for their logits that grows with the batch.
  const int64_t bytes = std::max<int64_t>(1, rows * padded_keys * static_cast<int64_t>(sizeof(T)));
  const int64_t wave = std::clamp<int64_t>(kDecodeBytes * at::get_num_threads() / bytes, 1, std::max<int64_t>(units, 1));
  Buffer<T> logits(wave * rows * padded_keys);
  Buffer<T> queries(wave * rows * problem.width);
  Buffer<T> partial(attends ? wave * chunks * rows * problem.value_width : 0);
  std::vector<ChunkStatistics<T>> found(wave * chunks * rows);
  std::vector<Panel<T>> panels(wave);
  Buffer<T> output(attends ? rows * problem.value_width : 0), line(problem.value_width);

  for (int64_t begin = 0; begin < units; begin += wave) {
    const int64_t here = std::min(wave, units - begin);
    for (int64_t unit = 0; unit < here; ++unit) {
      const int64_t batch = (begin + unit) / problem.key_heads, key_head = (begin + unit) % problem.key_heads;
      Panel<T>& panel = panels[unit];
      open_panel(problem, panel, key_head * problem.group(), 0, rows);
      for (int r = 0; r < rows; ++r) {
        T* to = queries.get() + (unit * rows + r) * problem.width;
        convert(problem.query.scalar, address(problem.query, batch, panel.head[r], panel.row[r]), problem.width, to);
        for (int64_t d = 0; d < problem.width; ++d) to[d] *= query_factor;
      }
    }
    const int64_t work = problem.width * rows * problem.keys * here;
    run_tasks(here * chunks, work, [&](const std::function<int64_t()>& take) {
      Buffer<T> scratch(kBlock * problem.width);
      Buffer<T> bias(kDecodeChunk);
      for (int64_t task = take(); task >= 0; task = take()) {
        const int64_t unit = task / chunks, chunk = task % chunks;
        const int64_t batch = (begin + unit) / problem.key_heads, key_head = (begin + unit) % problem.key_heads;
        const Panel<T>& panel = panels[unit];
        const int64_t first = chunk * kDecodeChunk, last = std::min(first + kDecodeChunk, problem.keys);
        ChunkStatistics<T>* of_rows = found.data() + task * rows;
        if (last <= panel.first || first >= panel.last) { // a window does not reach here
          for (int r = 0; r < rows; ++r) of_rows[r] = {-kInfinity<T>, 0, 0, 0, 0, 0, false};
          continue;
        }
        for (int top = 0; top < rows; top += kDecodeTile)
          with_rows(std::min(kDecodeTile, rows - top), [&](auto constant) {
            constexpr int height = decltype(constant)::value;
            const T* query[height];
            for (int r = 0; r < height; ++r) query[r] = queries.get() + (unit * rows + top + r) * problem.width;
            for (int64_t start = first; start < last; start += kBlock) {
              const int count = static_cast<int>(std::min<int64_t>(kBlock, last - start));
              T* to[height];
              for (int r = 0; r < height; ++r) to[r] = logits.get() + (unit * rows + top + r) * padded_keys + start;
              int64_t stride;
              const T* keys = rows_of(problem.key, batch, key_head, start, count, problem.width, scratch.get(), stride);
              // Keys that were converted lie in scratch memory: nothing to fetch.
              const int64_t ahead =
                  problem.key.scalar == native_scalar<T>() ? problem.keys - start - kPrefetchKeys : 0;
              dot_keys<T, height>(
                  keys, stride, count, static_cast<int>(std::min<int64_t>(count, ahead)), query, problem.width, to);
            }
          });
        for (int r = 0; r < rows; ++r)
          of_rows[r] = finish_chunk(
              problem, panel, r, batch, first, static_cast<int>(last - first),
              logits.get() + (unit * rows + r) * padded_keys + first, bias.get());
      }
    });
    for (int64_t unit = 0; unit < here; ++unit) {
      const int64_t batch = (begin + unit) / problem.key_heads;
      Panel<T>& panel = panels[unit];
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        for (int r = 0; r < rows; ++r) merge_chunk(panel, r, found[(unit * chunks + chunk) * rows + r]);
      settle_statistics(problem, panel);
      write_statistics(problem, panel, batch, results);
      if (!attends) continue;
      choose_beta(problem, panel, batch, given_beta);
      prepare_weights(panel);
      for (int r = 0; r < rows; ++r) {
        if (!is_leveled(panel, r)) continue;
        const T maximum = panel.maximum[r];
        T* row = logits.get() + (unit * rows + r) * padded_keys;
        for (int64_t key = panel.first / kDecodeChunk * kDecodeChunk; key < panel.last; ++key)
          row[key] = row[key] == maximum ? T(0) : -kInfinity<T>;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          ChunkStatistics<T>& statistics = found[(unit * chunks + chunk) * rows + r];
          statistics.maximum = statistics.maximum == maximum ? T(0) : -kInfinity<T>;
        }
      }
    }
    if (!attends) continue;
    run_tasks(here * chunks, work, [&](const std::function<int64_t()>& take) {
      Buffer<T> scratch(problem.value.scalar == native_scalar<T>() ? 0 : kDecodeChunk * problem.value_width);
      Buffer<T> weights(kDecodeChunk * kDecodeTile + kDecodeTile);
      Buffer<const T*> kept(kDecodeChunk + 1);
      for (int64_t task = take(); task >= 0; task = take()) {
        const int64_t unit = task / chunks, chunk = task % chunks;
        const int64_t batch = (begin + unit) / problem.key_heads, key_head = (begin + unit) % problem.key_heads;
        const Panel<T>& panel = panels[unit];
        const int64_t first = chunk * kDecodeChunk, last = std::min(first + kDecodeChunk, problem.keys);
        ChunkStatistics<T>* of_rows = found.data() + task * rows;
        T* sums = partial.get() + task * rows * problem.value_width;
        std::fill(sums, sums + rows * problem.value_width, T(0));
        const T* values = nullptr;
        int64_t stride = 0;
        for (int top = 0; top < rows; top += kDecodeTile)
          with_rows(std::min(kDecodeTile, rows - top), [&](auto constant) {
            constexpr int height = decltype(constant)::value;
            bool matters = false;
            for (int r = top; r < top + height; ++r)
              matters |= panel.factor[r] * (of_rows[r].maximum - panel.anchor[r]) > threshold;
            if (!matters) return;
            if (!values)
              values = rows_of(
                  problem.value, batch, key_head, first, last - first, problem.value_width, scratch.get(), stride);
            T* from[height];
            for (int r = 0; r < height; ++r) from[r] = logits.get() + (unit * rows + top + r) * padded_keys + first;
            const int count = weigh_chunk<T, height>(
                panel, top, from, static_cast<int>(last - first), threshold, values, stride, weights.get(), kept.get(),
                of_rows + top);
            blend_values<T, height>(
                kept.get(), count, weights.get(), problem.value_width, sums + top * problem.value_width,
                problem.value_width);
          });
      }
    });
    for (int64_t unit = 0; unit < here; ++unit) {
      Panel<T>& panel = panels[unit];
      panel.output = output.get();
      const int64_t values = rows * problem.value_width;
      std::fill(output.get(), output.get() + values, T(0));
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const T* sums = partial.get() + (unit * chunks + chunk) * values;
        bool empty = true;
        for (int r = 0; r < rows; ++r) {
          const T total = found[(unit * chunks + chunk) * rows + r].total;
          panel.total[r] += total;
          empty &= total == 0;
        }
        if (!empty)
          for (int64_t n = 0; n < values; ++n) output[n] += sums[n];
      }
      const int64_t batch = (begin + unit) / problem.key_heads, key_head = (begin + unit) % problem.key_heads;
      write_output(
          problem, panel, batch, key_head, threshold, logits.get() + unit * rows * padded_keys, 1, padded_keys, line.get(), results,
          1, problem.value_width);
    }
  }
}

} // namespace sharpmax
