// Attention of whole panels. The logits of a panel are computed once and kept: [key][row], one block of keys after another.
// A first pass over the blocks computes them and their statistics, which give beta. A second pass computes the weights and sums
// the values.
#pragma once

#include <atomic>
#include <functional>

#include "target.h"
#include "threads.h"

namespace sharpmax::SHARPMAX_VARIANT {

// Where results go: the output in the type of the query, the rest [batch, head, row]. What is null is not wanted; without an
// output only the statistics are computed.
template <class T> struct Results {
  sharpmax_writable output{};
  T *maximum = nullptr, *mass = nullptr, *moment = nullptr;
  int64_t* count = nullptr;
  T *beta = nullptr, *logmass = nullptr;
};

template <class Number> SHARPMAX_INLINE void put(Number* array, int64_t at, Number value) {
  if (array) array[at] = value;
}

using Take = std::function<int64_t()>; // the next task, or -1

// Runs tasks 0 … count - 1; each thread takes the next one when it is free. What a task writes must not depend on the thread.
// `work` is the number of multiplications. Little work stays on this thread.
inline void run_tasks(
    const Problem& problem, int64_t count, int64_t work, const std::function<void(const Take&)>& worker) {
  constexpr int64_t worth_a_thread = 1 << 17;
  std::atomic<int64_t> next{0};
  const Take take = [&]() -> int64_t {
    const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    return task < count ? task : -1;
  };
  const auto work_on = [&] { worker(take); };
  const int64_t threads = std::min({count, work / worth_a_thread + 1, problem.threads});
  if (count > 0)
    run_parallel(
        problem.parallel, threads, [](void* context) { (*static_cast<decltype(work_on)*>(context))(); },
        const_cast<void*>(static_cast<const void*>(&work_on)));
}

inline int64_t work_of(const Problem& problem) {
  return problem.batches * problem.query_heads * problem.queries * problem.keys * (problem.width + problem.value_width);
}

// Calls function(std::integral_constant<int, number>) for a number from 1 to `most` that is known only at run time.
template <int most, class Function> SHARPMAX_INLINE void with_constant(int number, Function&& function) {
  if constexpr (most > 1) {
    if (number < most) return with_constant<most - 1>(number, function);
  }
  function(std::integral_constant<int, most>{});
}

template <class Function> SHARPMAX_INLINE void with_vectors(int vectors, Function&& function) {
  with_constant<kPanelVectors>(vectors, function);
}

template <class T>
inline void write_statistics(const Problem& problem, const Panel<T>& panel, int64_t batch, const Results<T>& results) {
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t at = problem.place(batch, panel.head[r], panel.row[r]);
    put(results.maximum, at, panel.maximum[r]);
    put(results.mass, at, panel.mass[r]);
    put(results.moment, at, panel.moment[r]);
    put(results.count, at, panel.count[r]);
  }
}

template <class T>
inline void choose_beta(const Problem& problem, Panel<T>& panel, int64_t batch, const T* given) {
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t at = problem.place(batch, panel.head[r], panel.row[r]);
    if (panel.maximum[r] == -kInfinity<T>)
      panel.beta[r] = 1;
    else if (given)
      panel.beta[r] = given[at];
    else
      panel.beta[r] = static_cast<T>(inverse_temperature(
          problem, panel.head[r], entropy_of(panel.mass[r], panel.moment[r]), panel.count[r]));
  }
}

// Whether only the maxima of a row have weight, in equal shares, because they are +inf or beta is infinite. In the second pass
// their logits are 0 and all others -inf.
template <class T> inline bool is_leveled(const Panel<T>& panel, int r) {
  return panel.maximum[r] == kInfinity<T> || panel.beta[r] == kInfinity<T>;
}

// Sets what the second pass needs: exp(factor * (logit - anchor)) is a weight.
template <class T> inline void prepare_weights(Panel<T>& panel) {
  constexpr T out_of_reach = std::numeric_limits<T>::max() / 4; // every weight is zero below it
  for (int r = 0; r < panel.stride(); ++r) {
    const bool alive = r < panel.rows && !panel.invalid[r] && panel.maximum[r] > -kInfinity<T>;
    const bool leveled = alive && is_leveled(panel, r);
    panel.anchor[r] = !alive ? out_of_reach : leveled ? T(0) : panel.maximum[r];
    // Not zero: a hidden key, at -inf, would have the weight NaN.
    panel.factor[r] = !alive || leveled ? T(1) : std::max(panel.beta[r], std::numeric_limits<T>::min());
  }
}

template <class T> inline void level(T* logits, int64_t count, int64_t stride, T maximum) {
  for (int64_t n = 0; n < count; ++n) logits[n * stride] = logits[n * stride] == maximum ? T(0) : -kInfinity<T>;
}

template <class T> inline void level_rows(Panel<T>& panel) {
  const int64_t stride = panel.stride(), start = panel.first / kBlock, blocks = (panel.last + kBlock - 1) / kBlock - start;
  for (int r = 0; r < panel.rows; ++r) {
    if (!is_leveled(panel, r)) continue;
    level(panel.peaks + start * kGroups * stride + r, blocks * kGroups, stride, panel.maximum[r]);
    level(panel.logits + r, panel.last - panel.first, stride, panel.maximum[r]);
  }
}

// Computes the weights of a block without keys whose weights are negligible in all rows. Returns the number of keys kept. A weight
// that is negligible in its own row becomes zero: its products may be below the normal numbers, and some processors take a hundred
// cycles for each of those.
template <class T, int vectors, class Number>
inline int weigh_block(
    Panel<T>& panel, const T* tile, const T* peaks, int count, T threshold, Rows<Number> values, T* weights,
    const Number** kept) {
  using V = Vector<T>;
  constexpr int rows = vectors * V::width;
  V anchor[vectors], factor[vectors], total[vectors];
  for (int v = 0; v < vectors; ++v) {
    anchor[v] = V::load(panel.anchor + v * V::width);
    factor[v] = V::load(panel.factor + v * V::width);
    total[v] = V::zero();
  }
  const V limit = V::splat(threshold), vanishing = V::splat(kVanishing<T>);
  int number = 0;
  for (int first = 0; first < count; first += kGroup, peaks += rows) {
    if (!group_matters<T, vectors>(panel, peaks, threshold)) continue;
    for (int n = first; n < std::min(first + kGroup, count); ++n) {
      V exponent[vectors];
      Bits<T> matters{};
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        exponent[v] = factor[v] * (V::load(tile + n * rows + v * V::width) - anchor[v]);
        const Bits<T> above = greater(exponent[v], limit);
        matters |= above;
        exponent[v] = select<T>(above, exponent[v], vanishing);
      }
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        const V weight = exp_bounded(exponent[v]);
        total[v] += weight;
        weight.store(weights + number * rows + v * V::width);
      }
      kept[number] = values[n];
      number += any<T>(matters);
    }
  }
  for (int v = 0; v < vectors; ++v) {
    T* place = panel.total + v * V::width;
    (V::load(place) + total[v]).store(place);
  }
  return number;
}

// log of the denominator of the weights (keys and sink), relative to factor * maximum.
template <class T>
inline double denominator(const Problem& problem, int64_t head, double maximum, double beta, double total) {
  const double sink = problem.has_sink() ? problem.sink(head) : -kInfinity<double>;
  if (sink == -kInfinity<double>) return std::log(total);
  if (problem.sink_counted) {
    if (sink == maximum) return std::log(total + 1);
    if (std::isinf(maximum) || std::isinf(beta)) return std::log(total); // the sink is below the maximum and has no weight
    return std::log(total + std::exp(beta * (sink - maximum)));
  }
  if (maximum == kInfinity<double>) return sink == maximum ? sink : std::log(total);
  if (total == 0) return sink; // no keys: there is no maximum to be relative to
  const double relative = sink - (maximum == 0 ? 0 : beta * maximum), of_keys = std::log(total);
  return relative > of_keys ? relative + std::log1p(std::exp(of_keys - relative))
                            : of_keys + std::log1p(std::exp(relative - of_keys));
}

// Sums the values of one row again without those that have no weight. If one of them is NaN or infinite, zero times it is NaN.
template <class T>
__attribute__((noinline)) void mend_row(
    const Problem& problem, const Panel<T>& panel, int r, int64_t batch, int64_t key_head, T threshold, const T* logits,
    int64_t key_stride, T* scratch, T* output, int64_t column_stride) {
  for (int64_t c = 0; c < problem.value_width; ++c) output[c * column_stride] = 0;
  for (int64_t key = panel.first_key[r]; key < panel.last_key[r]; ++key) {
    const T exponent = panel.factor[r] * (logits[key * key_stride] - panel.anchor[r]);
    if (!(exponent > threshold)) continue;
    const T weight = std::exp(exponent);
    convert(problem.value.scalar, address(problem.value, batch, key_head, key), problem.value_width, scratch);
    for (int64_t c = 0; c < problem.value_width; ++c) output[c * column_stride] += weight * scratch[c];
  }
}

// Divides and writes the output of the panel, with beta and the logarithm of the tempered mass. `logits` points to key 0.
template <class T>
inline void write_output(
    const Problem& problem, const Panel<T>& panel, int64_t batch, int64_t key_head, T threshold, const T* logits,
    int64_t key_stride, int64_t logit_row_stride, T* scratch, const Results<T>& results, int64_t column_stride,
    int64_t row_stride) {
  const Scalar scalar = problem.query.scalar;
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t at = problem.place(batch, panel.head[r], panel.row[r]);
    const bool invalid = panel.invalid[r] || std::isnan(panel.beta[r]);
    const double logarithm =
        denominator<T>(problem, panel.head[r], panel.maximum[r], panel.beta[r], panel.total[r]);
    const T reciprocal = panel.total[r] > 0 ? static_cast<T>(std::exp(-logarithm)) : T(0);
    T* row = panel.output + r * row_stride;
    bool spoilt = false;
    for (int64_t c = 0; c < problem.value_width; ++c) spoilt |= std::isnan(row[c * column_stride]);
    if (spoilt && !invalid)
      mend_row(
          problem, panel, r, batch, key_head, threshold, logits + r * logit_row_stride, key_stride, scratch, row, column_stride);
    if (invalid)
      for (int64_t c = 0; c < problem.value_width; ++c) scratch[c] = std::numeric_limits<T>::quiet_NaN();
    else
      for (int64_t c = 0; c < problem.value_width; ++c) scratch[c] = reciprocal * row[c * column_stride];
    convert_back(
        scalar, scratch, problem.value_width, address(results.output, scalar, batch, panel.head[r], panel.row[r]));
    put(results.beta, at, panel.beta[r]);
    put(results.logmass, at, invalid ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(logarithm));
  }
}

// Rows `begin` to `end` of a segment, which share their keys.
struct Stretch {
  int64_t batch, key_head, first_head, begin, end;
};

// How rows are divided: segments, panels of a segment, and panels that go over the keys together.
template <class T> struct Division {
  int64_t segments_per_key_head, heads_per_segment, rows_per_segment, rows_per_task, tasks_per_segment, tasks;

  explicit Division(const Problem& problem, int64_t panels_per_task) {
    // Short heads that share their keys also share panels, so that fewer lanes are empty. A panel that spans two long heads would
    // cost more than it saves: under a causal mask it computes all keys that its longest row sees.
    const bool merged = problem.queries < 8 * Panel<T>::capacity;
    segments_per_key_head = merged ? 1 : problem.group();
    heads_per_segment = merged ? problem.group() : 1;
    rows_per_segment = heads_per_segment * problem.queries;
    rows_per_task = panels_per_task * Panel<T>::capacity;
    tasks_per_segment = (rows_per_segment + rows_per_task - 1) / rows_per_task;
    tasks = problem.batches * problem.key_heads * segments_per_key_head * tasks_per_segment;
  }

  Stretch locate(const Problem& problem, int64_t task) const {
    const int64_t segment = task / tasks_per_segment;
    // From the end: under a causal mask the last rows are the longest, and long tasks should not come last.
    const int64_t begin = (tasks_per_segment - 1 - task % tasks_per_segment) * rows_per_task;
    const int64_t key_head = segment / segments_per_key_head % problem.key_heads;
    return {
        segment / (problem.key_heads * segments_per_key_head), key_head,
        key_head * problem.group() + segment % segments_per_key_head * heads_per_segment, begin,
        std::min(begin + rows_per_task, rows_per_segment)};
  }
};

constexpr int kMaximumPanels = 4; // that one task takes over the keys together

// Runs the first pass for panels that share their keys. `keep` tells whether their logits are kept.
template <class T>
inline void first_pass(
    const Problem& problem, Panel<T>* panels, int number, int64_t batch, int64_t key_head, bool keep, MaskTile<T>* mask,
    T* key_scratch) {
  int64_t first = problem.keys, last = 0;
  for (int p = 0; p < number; ++p) panels[p].extend(first, last);
  for (int64_t start = first / kBlock * kBlock; start < last; start += kBlock) {
    const int64_t stop = std::min<int64_t>(start + kBlock, problem.keys);
    Rows<T> keys;
    Rows<BFloat16> halves;
    if (problem.halves)
      halves = {reinterpret_cast<const BFloat16*>(address(problem.key, batch, key_head, start)), problem.key.row};
    else
      keys = rows_of(
          problem.key, batch, key_head, start, stop - start, problem.width, key_scratch, rows_collide(problem.key));
    for (int p = 0; p < number; ++p) {
      Panel<T>& panel = panels[p];
      const int64_t from = std::max(start, panel.first), to = std::min(stop, panel.last);
      if (from >= to) continue;
      with_vectors(panel.vectors, [&](auto constant) {
        constexpr int vectors = decltype(constant)::value;
        T* tile = keep ? panel.logits + (from - panel.first) * panel.stride() : panel.logits;
        T* peaks = keep ? panel.peaks + start / kBlock * kGroups * panel.stride() : nullptr;
        const int count = static_cast<int>(to - from);
        if (score_block<T, vectors>(
                problem, panel, batch, keys.from(from - start), from, count, mask, tile, nullptr, halves.from(from - start)))
          gather_statistics<T, vectors>(panel, tile, count, peaks);
        else if (keep) {
          std::fill(peaks, peaks + kGroups * panel.stride(), -kInfinity<T>);
          std::fill(tile, tile + count * panel.stride(), -kInfinity<T>); // mend_row reads them
        }
      });
    }
  }
}

template <class T>
inline void second_pass(
    const Problem& problem, Panel<T>* panels, int number, int64_t batch, int64_t key_head, T threshold, T* value_scratch,
    T* weights, const T** kept) {
  int64_t first = problem.keys, last = 0;
  for (int p = 0; p < number; ++p) panels[p].extend(first, last);
  for (int64_t start = first / kBlock * kBlock; start < last; start += kBlock) {
    const int64_t stop = std::min<int64_t>(start + kBlock, problem.keys);
    Rows<T> values;
    const bool copied = problem.value.scalar != native_scalar<T>() || rows_collide(problem.value);
    for (int p = 0; p < number; ++p) {
      Panel<T>& panel = panels[p];
      const int64_t from = std::max(start, panel.first), to = std::min(stop, panel.last);
      if (from >= to) continue;
      with_vectors(panel.vectors, [&](auto constant) {
        constexpr int vectors = decltype(constant)::value;
        const T* peaks = panel.peaks + start / kBlock * kGroups * panel.stride();
        const int length = static_cast<int>(to - from);
        bool matters = false;
        for (int group = 0; group * kGroup < length && !matters; ++group)
          matters = group_matters<T, vectors>(panel, peaks + group * panel.stride(), threshold);
        if (!matters) return;
        const T* tile = panel.logits + (from - panel.first) * panel.stride();
        if constexpr (sizeof(T) == 4) {
          if (problem.halves) {
            const Rows<BFloat16> halves{
                reinterpret_cast<const BFloat16*>(address(problem.value, batch, key_head, from)), problem.value.row};
            const auto addresses = reinterpret_cast<const BFloat16**>(kept);
            const int count =
                weigh_block<T, vectors>(panel, tile, peaks, length, threshold, halves, weights, addresses);
            auto* pairs = reinterpret_cast<uint32_t*>(value_scratch);
            return accumulate_halves<vectors>(addresses, weights, count, problem.value_width, pairs, panel.output);
          }
        }
        if (!values.data)
          values =
              rows_of(problem.value, batch, key_head, start, stop - start, problem.value_width, value_scratch, copied);
        const int count =
            weigh_block<T, vectors>(panel, tile, peaks, length, threshold, values.from(from - start), weights, kept);
        // The first panel prefetches values for the others. Copied values need no prefetching.
        const int64_t distance = p == 0 && !copied ? kBlock * values.stride : 0;
        const int64_t lines = kBlock * panel.stride() * static_cast<int64_t>(sizeof(T)) / kLine;
        accumulate_values<T, vectors>(
            kept, weights, count, problem.value_width, panel.output, distance, tile + kBlock * panel.stride(), lines);
      });
    }
  }
}

// Attention of all rows, or their statistics alone. Memory per thread: `panels_per_task` panels of logits, linear in the number
// of keys; for statistics one block of logits.
template <class T>
inline void attend_panels(const Problem& problem, const T* given_beta, int panels_per_task, const Results<T>& results) {
  const Division<T> division(problem, panels_per_task);
  const bool attends = results.output.data != nullptr;
  const int64_t capacity = Panel<T>::capacity;
  const int64_t kept_keys = attends ? problem.keys : 0;
  const int64_t groups = (kept_keys + kBlock - 1) / kBlock * kGroups;
  const T threshold = negligible<T>(problem.keys);
  run_tasks(problem, division.tasks, work_of(problem), [&](const Take& take) {
    Buffer<T> queries(panels_per_task * problem.width * capacity);
    Buffer<T> outputs(panels_per_task * problem.value_width * capacity);
    Buffer<T> logits(attends ? panels_per_task * kept_keys * capacity : kBlock * capacity);
    Buffer<T> peaks(panels_per_task * groups * capacity);
    Buffer<T> weights(attends ? kBlock * capacity : 0);
    Buffer<T> scratch(kBlock * std::max(problem.width, problem.value_width));
    Buffer<const T*> kept(kBlock + 1);
    std::unique_ptr<MaskTile<T>> mask(problem.masked ? new MaskTile<T> : nullptr);
    Panel<T> panels[kMaximumPanels];
    for (int64_t task = take(); task >= 0; task = take()) {
      const auto [batch, key_head, first_head, begin, end] = division.locate(problem, task);
      int number = 0;
      for (int64_t row = begin; row < end; row += capacity, ++number) {
        Panel<T>& panel = panels[number];
        open_panel(problem, panel, first_head, row, std::min(end, row + capacity));
        panel.query = queries.get() + number * problem.width * capacity;
        panel.output = outputs.get() + number * problem.value_width * capacity;
        panel.logits = logits.get() + number * kept_keys * capacity;
        panel.peaks = peaks.get() + number * groups * capacity;
        pack_query(problem, panel, batch, scratch.get());
        std::fill(panel.output, panel.output + problem.value_width * panel.stride(), T(0));
      }
      first_pass(problem, panels, number, batch, key_head, attends, mask.get(), scratch.get());
      for (int p = 0; p < number; ++p) {
        Panel<T>& panel = panels[p];
        settle_statistics(problem, panel);
        write_statistics(problem, panel, batch, results);
        if (!attends) continue;
        choose_beta(problem, panel, batch, given_beta);
        level_rows(panel);
        prepare_weights(panel);
        if (problem.policy == Policy::entropy_target)
          with_vectors(panel.vectors, [&](auto constant) {
            meet_entropy_target<T, decltype(constant)::value>(problem, panel, threshold);
          });
      }
      if (!attends) continue;
      second_pass(
          problem, panels, number, batch, key_head, threshold, scratch.get(), weights.get(), kept.get());
      for (int p = 0; p < number; ++p) {
        const Panel<T>& panel = panels[p];
        const int64_t stride = panel.stride();
        write_output(
            problem, panel, batch, key_head, threshold, panel.logits - panel.first * stride, stride, 1, scratch.get(), results,
            stride, 1);
      }
    }
  });
}

} // namespace sharpmax::SHARPMAX_VARIANT
