// A few rows against many keys, as in decoding with a cache. Each key takes little arithmetic, so keys and values are read once,
// for all rows that share them, and the reading is spread over the threads whatever the number of heads. Vectors lie along the
// width. Keys are cut into chunks of fixed length. The chunks of a row are merged in their order, so the result does not depend on
// the threads.
#pragma once

#include <vector>

#include "forward.h"

namespace sharpmax::SHARPMAX_VARIANT {

constexpr int kDecodeRows = 8;     // at most, over all heads that share their keys
constexpr int kDecodeTile = 4;     // rows that go over the keys together
constexpr int64_t kDecodeChunk = 512;
constexpr int kPrefetchKeys = 24;  // how far ahead keys and values are prefetched
constexpr int64_t kDecodeBytes = 4 << 20; // logits kept per thread

template <class T> SHARPMAX_INLINE T sum_of(typename Vector<T>::Native lanes) {
  // By halves: the additions of one step are independent.
  T parts[Vector<T>::width];
  std::memcpy(parts, &lanes, sizeof(lanes));
#pragma GCC unroll 5
  for (int half = Vector<T>::width / 2; half > 0; half /= 2)
#pragma GCC unroll 16
    for (int n = 0; n < half; ++n) parts[n] += parts[n + half];
  return parts[0];
}

#if defined(__AVX2__) && !defined(__AVX512F__)
template <> SHARPMAX_INLINE float sum_of<float>(Vector<float>::Native lanes) {
  const __m256 all = (__m256)lanes;
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#endif

// Calls function(Number()) with the type of the numbers that keys and values hold, if T is the type to compute in.
template <class T, class Function> SHARPMAX_INLINE void with_stored(Scalar scalar, Function&& function) {
  if constexpr (sizeof(T) == 8)
    function(double());
  else if (scalar == Scalar::float16)
    function(Half());
  else if (scalar == Scalar::bfloat16)
    function(BFloat16());
  else
    function(float());
}

template <class Number> inline Rows<Number> stored_rows(const Strided& tensor, int64_t batch, int64_t head, int64_t first) {
  return {reinterpret_cast<const Number*>(address(tensor, batch, head, first)), tensor.row};
}

template <class Number> SHARPMAX_INLINE void prefetch_numbers(const Number* from, int64_t count) {
  const auto* bytes = reinterpret_cast<const char*>(from);
  for (int64_t at = 0; at < count * static_cast<int64_t>(sizeof(Number)); at += kLine) prefetch(bytes + at);
}

// logits[r][n] = query[r] · keys[n], for n < count.
template <class T, int rows, class Number>
__attribute__((noinline)) void dot_keys(
    Rows<Number> keys, int count, int ahead, const T* const* query, int64_t width, T* const* logits) {
  using V = Vector<T>;
  constexpr int height = 12 / rows;
  const int64_t whole = width / V::width * V::width;
  for (int first = 0; first < count; first += height) {
    const Number* pointers[height];
    typename V::Native sums[height][rows];
#pragma GCC unroll 12
    for (int k = 0; k < height; ++k) {
      const int key = first + k < count ? first + k : count - 1;
      pointers[k] = keys[key];
      if (first + k < count && key < ahead) prefetch_numbers(keys[key + kPrefetchKeys], width);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) sums[k][r] = typename V::Native{};
    }
    for (int64_t d = 0; d < whole; d += V::width) {
      typename V::Native operand[rows];
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) operand[r] = V::load(query[r] + d).lanes;
#pragma GCC unroll 12
      for (int k = 0; k < height; ++k) {
        const typename V::Native key = load_vector(pointers[k] + d).lanes;
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
        for (int64_t d = whole; d < width; ++d) sum += static_cast<T>(pointers[k][d]) * query[r][d];
        logits[r][first + k] = sum;
      }
    }
  }
}

// output[r][c] += sum over n of weights[n][r] * values[n][c], for `vectors` vectors of columns from `column` on.
template <class T, int rows, int vectors, class Number>
SHARPMAX_INLINE void blend_columns(
    const Number* const* values, int count, int reach, const T* weights, int64_t column, T* output, int64_t output_stride) {
  Tile<T, rows, vectors> tile;
  tile.clear();
  for (int n = 0; n < count; ++n) {
    if (n + kPrefetchKeys < reach)
      prefetch_numbers(values[n + kPrefetchKeys] + column, vectors * Vector<T>::width);
    tile.add(values[n] + column, [&](int r) SHARPMAX_INLINE_LAMBDA { return weights[n * rows + r]; });
  }
  tile.add_to(output + column, output_stride, rows);
}

// The same for all columns. A slab of values stays in the first-level cache while its columns are processed.
template <class T, int rows, class Number>
__attribute__((noinline)) void blend_values(
    const Number* const* values, int count, const T* weights, int64_t width, T* output, int64_t output_stride) {
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
        for (int n = 0; n < here; ++n) sum += w[n * rows + r] * static_cast<T>(values[first + n][column]);
        output[r * output_stride + column] += sum;
      }
  }
}

template <class Function> SHARPMAX_INLINE void with_rows(int rows, Function&& function) {
  with_constant<kDecodeTile>(rows, function);
}

// Statistics of one row over one chunk of keys.
template <class T> struct ChunkStatistics {
  T maximum = -kInfinity<T>, mass = 0, moment = 0, total = 0;
  int64_t count = 0, infinite = 0;
  bool invalid = false;
};

// Applies softcap, mask and window to the logits of one row, and returns their statistics. `logits` has room up to a whole vector.
template <class T>
inline ChunkStatistics<T> finish_chunk(
    const Problem& problem, const Panel<T>& panel, int r, int64_t batch, int64_t first, int count, T* logits, T* bias) {
  using V = Vector<T>;
  ChunkStatistics<T> result;
  const int padded = (count + V::width - 1) / V::width * V::width;
  if (problem.softcap > 0) {
    std::fill(logits + count, logits + padded, T(0));
    cap_logits<T, 1>(logits, padded / V::width, problem.softcap, problem.scale);
  }
  const int64_t low = std::clamp<int64_t>(panel.first_key[r] - first, 0, count);
  const int64_t high = std::clamp<int64_t>(panel.last_key[r] - first, low, count);
  std::fill(logits, logits + low, -kInfinity<T>);
  std::fill(logits + high, logits + padded, -kInfinity<T>);
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

// Computes the weights of a chunk for up to four rows, [kept key][row], the addresses of the kept values, and the totals.
template <class T, int rows, class Number>
inline int weigh_chunk(
    const Panel<T>& panel, int first_row, T* const* logits, int count, T threshold, Rows<Number> values, T* weights,
    const Number** kept, ChunkStatistics<T>* chunk) {
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
      const Bits<T> above = greater(exponent, V::splat(threshold));
      matters |= above;
      const V weight = exp_bounded(select<T>(above, exponent, V::splat(kVanishing<T>)));
      total[r] += weight;
      weight.store(weight_rows[r]);
    }
    if (!any<T>(matters)) continue;
    const int here = std::min(V::width, count - n);
    for (int lane = 0; lane < here; ++lane) {
      for (int r = 0; r < rows; ++r) weights[number * rows + r] = weight_rows[r][lane];
      kept[number] = values[n + lane];
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

// Attention of all rows, or their statistics alone. Each unit of work holds the rows that share a key head, each task one chunk of
// a unit's keys. Units are processed in waves, so that memory does not grow with the batch.
template <class T> struct Decoding {
  const Problem& problem;
  const T* given_beta;
  const Results<T>& results;

  const bool attends = results.output.data != nullptr;
  const int rows = static_cast<int>(problem.group() * problem.queries);
  const int64_t units = problem.batches * problem.key_heads;
  const int64_t chunks = (problem.keys + kDecodeChunk - 1) / kDecodeChunk;
  const int64_t padded_keys = chunks * kDecodeChunk;
  const T threshold = negligible<T>(problem.keys);
  const int64_t bytes = std::max<int64_t>(1, rows * padded_keys * static_cast<int64_t>(sizeof(T)));
  const int64_t wave =
      std::clamp<int64_t>(kDecodeBytes * problem.threads / bytes, 1, std::max<int64_t>(units, 1));

  Buffer<T> logits{wave * rows * padded_keys};
  Buffer<T> queries{wave * rows * problem.width};
  Buffer<T> partial{attends ? wave * chunks * rows * problem.value_width : 0};
  Buffer<T> output{attends ? rows * problem.value_width : 0}, line{problem.value_width};
  std::vector<ChunkStatistics<T>> found = std::vector<ChunkStatistics<T>>(wave * chunks * rows);
  std::vector<Panel<T>> panels = std::vector<Panel<T>>(wave);
  int64_t begin = 0; // first unit of the wave

  void run() {
    for (; begin < units; begin += wave) {
      const int64_t here = std::min(wave, units - begin);
      for (int64_t unit = 0; unit < here; ++unit) open(unit);
      const int64_t work = problem.width * rows * problem.keys * here;
      run_tasks(problem, here * chunks, work, [&](const Take& take) {
        Buffer<T> bias(kDecodeChunk);
        with_stored<T>(problem.key.scalar, [&](auto number) {
          for (int64_t task = take(); task >= 0; task = take()) score<decltype(number)>(task, bias.get());
        });
      });
      for (int64_t unit = 0; unit < here; ++unit) settle(unit);
      if (!attends) continue;
      run_tasks(problem, here * chunks, work, [&](const Take& take) {
        Buffer<T> weights(kDecodeChunk * kDecodeTile + kDecodeTile);
        with_stored<T>(problem.value.scalar, [&](auto number) {
          Buffer<const decltype(number)*> kept(kDecodeChunk + 1);
          for (int64_t task = take(); task >= 0; task = take()) blend(task, weights.get(), kept.get());
        });
      });
      for (int64_t unit = 0; unit < here; ++unit) write(unit);
    }
  }

 private:
  int64_t batch_of(int64_t unit) const { return (begin + unit) / problem.key_heads; }
  int64_t key_head_of(int64_t unit) const { return (begin + unit) % problem.key_heads; }
  T* logits_of(int64_t unit, int r) const { return logits.get() + (unit * rows + r) * padded_keys; }
  T* query_of(int64_t unit, int r) const { return queries.get() + (unit * rows + r) * problem.width; }

  void open(int64_t unit) {
    Panel<T>& panel = panels[unit];
    open_panel(problem, panel, key_head_of(unit) * problem.group(), 0, rows);
    const T factor = static_cast<T>(problem.query_factor());
    for (int r = 0; r < rows; ++r) {
      T* to = query_of(unit, r);
      convert(problem.query.scalar, address(problem.query, batch_of(unit), panel.head[r], panel.row[r]), problem.width, to);
      for (int64_t d = 0; d < problem.width; ++d) to[d] *= factor;
    }
  }

  // The logits of one chunk and their statistics.
  template <class Number> void score(int64_t task, T* bias) {
    const int64_t unit = task / chunks, first = task % chunks * kDecodeChunk;
    const int64_t last = std::min(first + kDecodeChunk, problem.keys);
    const Panel<T>& panel = panels[unit];
    ChunkStatistics<T>* of_rows = found.data() + task * rows;
    std::fill(of_rows, of_rows + rows, ChunkStatistics<T>());
    if (last <= panel.first || first >= panel.last) return; // a window does not reach here
    for (int top = 0; top < rows; top += kDecodeTile)
      with_rows(std::min(kDecodeTile, rows - top), [&](auto constant) {
        constexpr int height = decltype(constant)::value;
        const T* query[height];
        for (int r = 0; r < height; ++r) query[r] = query_of(unit, top + r);
        for (int64_t start = first; start < last; start += kBlock) {
          const int count = static_cast<int>(std::min<int64_t>(kBlock, last - start));
          T* to[height];
          for (int r = 0; r < height; ++r) to[r] = logits_of(unit, top + r) + start;
          const auto keys = stored_rows<Number>(problem.key, batch_of(unit), key_head_of(unit), start);
          const int64_t ahead = std::min<int64_t>(count, problem.keys - start - kPrefetchKeys);
          dot_keys<T, height>(keys, count, static_cast<int>(ahead), query, problem.width, to);
        }
      });
    for (int r = 0; r < rows; ++r)
      of_rows[r] = finish_chunk(
          problem, panel, r, batch_of(unit), first, static_cast<int>(last - first), logits_of(unit, r) + first, bias);
  }

  // The statistics of all chunks together, and beta.
  void settle(int64_t unit) {
    Panel<T>& panel = panels[unit];
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int r = 0; r < rows; ++r) merge_chunk(panel, r, found[(unit * chunks + chunk) * rows + r]);
    settle_statistics(problem, panel);
    write_statistics(problem, panel, batch_of(unit), results);
    if (!attends) return;
    choose_beta(problem, panel, batch_of(unit), given_beta);
    prepare_weights(panel);
    for (int r = 0; r < rows; ++r) {
      if (!is_leveled(panel, r)) continue;
      const int64_t start = panel.first / kDecodeChunk * kDecodeChunk;
      level(logits_of(unit, r) + start, panel.last - start, 1, panel.maximum[r]);
      for (int64_t chunk = 0; chunk < chunks; ++chunk)
        level(&found[(unit * chunks + chunk) * rows + r].maximum, 1, 1, panel.maximum[r]);
    }
  }

  // The weighted sum of the values of one chunk.
  template <class Number> void blend(int64_t task, T* weights, const Number** kept) {
    const int64_t unit = task / chunks, first = task % chunks * kDecodeChunk;
    const int64_t count = std::min(kDecodeChunk, problem.keys - first);
    const Panel<T>& panel = panels[unit];
    ChunkStatistics<T>* of_rows = found.data() + task * rows;
    T* sums = partial.get() + task * rows * problem.value_width;
    std::fill(sums, sums + rows * problem.value_width, T(0));
    const auto values = stored_rows<Number>(problem.value, batch_of(unit), key_head_of(unit), first);
    for (int top = 0; top < rows; top += kDecodeTile)
      with_rows(std::min(kDecodeTile, rows - top), [&](auto constant) {
        constexpr int height = decltype(constant)::value;
        bool matters = false;
        for (int r = top; r < top + height; ++r)
          matters |= panel.factor[r] * (of_rows[r].maximum - panel.anchor[r]) > threshold;
        if (!matters) return;
        T* from[height];
        for (int r = 0; r < height; ++r) from[r] = logits_of(unit, top + r) + first;
        const int number = weigh_chunk<T, height>(
            panel, top, from, static_cast<int>(count), threshold, values, weights, kept, of_rows + top);
        blend_values<T, height>(
            kept, number, weights, problem.value_width, sums + top * problem.value_width, problem.value_width);
      });
  }

  void write(int64_t unit) {
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
    write_output(
        problem, panel, batch_of(unit), key_head_of(unit), threshold, logits_of(unit, 0), 1, padded_keys, line.get(), results,
        1, problem.value_width);
  }
};

} // namespace sharpmax::SHARPMAX_VARIANT
