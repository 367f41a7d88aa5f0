// Attention of whole panels. The logits of a panel are computed once and kept: [key][row], one block of keys after another.
// A first pass over the blocks makes them and gathers statistics; these give beta; a second pass makes the weights and adds
// up the values.
#pragma once

#include <atomic>
#include <functional>

#include <ATen/Parallel.h>

#include "cpu_target.h"

namespace sharpmax {

template <class T> struct Results {
  void* output = nullptr; // [batch, head, row, value width], in the type of the query
  T *maximum = nullptr, *mass = nullptr, *moment = nullptr, *beta = nullptr, *logmass = nullptr; // [batch, head, row]
  int64_t* count = nullptr;
};

using Take = std::function<int64_t()>; // the next task, or -1

// Runs tasks 0 … count - 1, each thread taking the next one when it is free. What a task writes must not depend on the thread.
// `work` is the number of multiplications: what is too little to be worth a thread stays on this one.
inline void run_tasks(int64_t count, int64_t work, const std::function<void(const Take&)>& worker) {
  constexpr int64_t worth_a_thread = 1 << 17;
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min({count, work / worth_a_thread + 1, static_cast<int64_t>(at::get_num_threads())});
  const Take take = [&]() -> int64_t {
    const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    return task < count ? task : -1;
  };
  if (threads <= 1) {
    if (count > 0) worker(take);
    return;
  }
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) worker(take);
  });
}

inline int64_t work_of(const Problem& problem) {
  return problem.batches * problem.query_heads * problem.queries * problem.keys * (problem.width + problem.value_width);
}

// Calls function(std::integral_constant<int, vectors>) for a number of vectors that is known only now.
template <class Function> SHARPMAX_INLINE void with_vectors(int vectors, Function&& function) {
  switch (vectors) {
    case 1: function(std::integral_constant<int, 1>{}); break;
    case 2: function(std::integral_constant<int, 2>{}); break;
    default: function(std::integral_constant<int, 3>{}); break;
  }
}

template <class T>
inline void write_statistics(const Problem& problem, const Panel<T>& panel, int64_t batch, const Results<T>& results) {
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t at = (batch * problem.query_heads + panel.head[r]) * problem.queries + panel.row[r];
    results.maximum[at] = panel.maximum[r];
    results.mass[at] = panel.mass[r];
    results.moment[at] = panel.moment[r];
    results.count[at] = panel.count[r];
  }
}

template <class T>
inline void choose_beta(const Problem& problem, Panel<T>& panel, int64_t batch, const T* given) {
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t at = (batch * problem.query_heads + panel.head[r]) * problem.queries + panel.row[r];
    if (panel.maximum[r] == -kInfinity<T>)
      panel.beta[r] = 1;
    else if (given)
      panel.beta[r] = given[at];
    else
      panel.beta[r] = static_cast<T>(inverse_temperature(
          problem, panel.head[r], entropy_of(panel.mass[r], panel.moment[r]), panel.count[r]));
  }
}

// Whether only the maxima of a row have weight, in equal shares: they are +inf, or beta is infinite. As logits for the second
// pass, 0 against -inf.
template <class T> inline bool is_leveled(const Panel<T>& panel, int r) {
  return panel.maximum[r] == kInfinity<T> || panel.beta[r] == kInfinity<T>;
}

// Gives each row what the second pass needs: exp(factor * (logit - anchor)) is its weight.
template <class T> inline void prepare_weights(Panel<T>& panel) {
  constexpr T out_of_reach = std::numeric_limits<T>::max() / 4; // every weight is zero below it
  for (int r = 0; r < panel.stride(); ++r) {
    const bool alive = r < panel.rows && !panel.invalid[r] && panel.maximum[r] > -kInfinity<T>;
    const bool leveled = alive && is_leveled(panel, r);
    panel.anchor[r] = !alive ? out_of_reach : leveled ? T(0) : panel.maximum[r];
    // Not zero, or a hidden key, at -inf, would have a weight that is not a number.
    panel.factor[r] = !alive || leveled ? T(1) : std::max(panel.beta[r], std::numeric_limits<T>::min());
  }
}

template <class T> inline void level_rows(Panel<T>& panel) {
  const int stride = panel.stride();
  for (int r = 0; r < panel.rows; ++r) {
    if (!is_leveled(panel, r)) continue;
    const T maximum = panel.maximum[r];
    const int64_t blocks = (panel.last + kBlock - 1) / kBlock;
    for (int64_t group = panel.first / kBlock * kGroups; group < blocks * kGroups; ++group) {
      T& peak = panel.peaks[group * stride + r];
      peak = peak == maximum ? T(0) : -kInfinity<T>;
    }
    for (int64_t key = 0; key < panel.last - panel.first; ++key) {
      T& logit = panel.logits[key * stride + r];
      logit = logit == maximum ? T(0) : -kInfinity<T>;
    }
  }
}

// What will be needed after the block at hand, to be fetched meanwhile: the next values, unless null, and the next logits,
// where they do not wait in the second-level cache.
template <class T> struct Ahead {
  const T* values = nullptr;
  int64_t value_bytes = 0;
  bool logits = false;
};

// The weights of a block, packed: keys whose weights are negligible in all rows are left out. Gives the number kept.
template <class T, int vectors>
inline int weigh_block(
    Panel<T>& panel, const T* tile, const T* peaks, int count, T threshold, const T* values, int64_t value_stride,
    const Ahead<T>& ahead, T* weights, const T** kept) {
  using V = Vector<T>;
  constexpr int rows = vectors * V::width;
  V anchor[vectors], factor[vectors], total[vectors];
  for (int v = 0; v < vectors; ++v) {
    anchor[v] = V::load(panel.anchor + v * V::width);
    factor[v] = V::load(panel.factor + v * V::width);
    total[v] = V::zero();
  }
  const V limit = V::splat(threshold);
  int number = 0;
  for (int first = 0; first < count; first += kGroup, peaks += rows) {
    if (!group_matters<T, vectors>(panel, peaks, threshold)) continue;
    for (int n = first; n < std::min(first + kGroup, count); ++n) {
      V exponent[vectors];
      Bits<T> matters{};
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        exponent[v] = factor[v] * (V::load(tile + n * rows + v * V::width) - anchor[v]);
        matters |= greater(exponent[v], limit);
      }
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        const V weight = exp_nonpositive(exponent[v]);
        total[v] += weight;
        weight.store(weights + number * rows + v * V::width);
      }
      if (ahead.logits) prefetch(tile + (n + kBlock) * rows, rows * static_cast<int64_t>(sizeof(T)));
      if (ahead.values) prefetch(ahead.values + n * value_stride, ahead.value_bytes);
      kept[number] = values + n * value_stride;
      number += any<T>(matters);
    }
  }
  for (int v = 0; v < vectors; ++v) {
    T* place = panel.total + v * V::width;
    (V::load(place) + total[v]).store(place);
  }
  return number;
}

// log of what the weights are divided by, relative to factor * maximum: the keys and, if there is one, the sink.
template <class T>
inline double denominator(const Problem& problem, int64_t head, double maximum, double beta, double total) {
  const double sink = problem.has_sink() ? problem.sink(head) : -kInfinity<double>;
  if (sink == -kInfinity<double>) return std::log(total);
  if (problem.sink_counted) {
    if (sink == maximum) return std::log(total + 1);
    if (std::isinf(maximum) || std::isinf(beta)) return std::log(total); // the sink is below the maximum, out of reach
    return std::log(total + std::exp(beta * (sink - maximum)));
  }
  if (maximum == kInfinity<double>) return sink == maximum ? sink : std::log(total);
  if (total == 0) return sink; // no keys: there is no maximum to be relative to
  const double relative = sink - (maximum == 0 ? 0 : beta * maximum), of_keys = std::log(total);
  return relative > of_keys ? relative + std::log1p(std::exp(of_keys - relative))
                            : of_keys + std::log1p(std::exp(relative - of_keys));
}

// Adds up the values of one row again, leaving out those without weight: where one of them is NaN or infinite, zero times it has
// spoilt the row.
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

// Divides and writes the output of the panel, with beta and the logarithm of the tempered mass. `logits` are those of key 0.
template <class T>
inline void write_output(
    const Problem& problem, const Panel<T>& panel, int64_t batch, int64_t key_head, T threshold, const T* logits,
    int64_t key_stride, int64_t logit_row_stride, T* scratch, const Results<T>& results, int64_t column_stride,
    int64_t row_stride) {
  const Scalar scalar = problem.query.scalar;
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t at = (batch * problem.query_heads + panel.head[r]) * problem.queries + panel.row[r];
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
    convert_back(scalar, scratch, problem.value_width,
                 static_cast<char*>(results.output) + at * problem.value_width * bytes_of(scalar));
    results.beta[at] = panel.beta[r];
    results.logmass[at] = invalid ? std::numeric_limits<T>::quiet_NaN() : static_cast<T>(logarithm);
  }
}

// How the rows are cut: segments, panels of a segment, and panels that go over the keys together.
template <class T> struct Division {
  int64_t segments_per_key_head, heads_per_segment, rows_per_segment, rows_per_task, tasks_per_segment, tasks;

  explicit Division(const Problem& problem, int64_t panels_per_task) {
    // Rows of short heads share panels, since they share their keys: fewer lanes stay empty. A panel that spans two long heads
    // would cost more than it saves, since under a causal mask it sees what the longest of its rows does.
    const bool merged = problem.queries < 8 * Panel<T>::capacity;
    segments_per_key_head = merged ? 1 : problem.group();
    heads_per_segment = merged ? problem.group() : 1;
    rows_per_segment = heads_per_segment * problem.queries;
    rows_per_task = panels_per_task * Panel<T>::capacity;
    tasks_per_segment = (rows_per_segment + rows_per_task - 1) / rows_per_task;
    tasks = problem.batches * problem.key_heads * segments_per_key_head * tasks_per_segment;
  }

  void locate(
      const Problem& problem, int64_t task, int64_t& batch, int64_t& key_head, int64_t& first_head, int64_t& begin,
      int64_t& end) const {
    const int64_t segment = task / tasks_per_segment;
    // From the end: under a causal mask the last rows are the longest, and long tasks should not come last.
    const int64_t chunk = tasks_per_segment - 1 - task % tasks_per_segment;
    batch = segment / (problem.key_heads * segments_per_key_head);
    key_head = segment / segments_per_key_head % problem.key_heads;
    first_head = key_head * problem.group() + segment % segments_per_key_head * heads_per_segment;
    begin = chunk * rows_per_task;
    end = std::min(begin + rows_per_task, rows_per_segment);
  }
};

constexpr int kMaximumPanels = 4; // that one task takes over the keys together

// Runs the first pass for panels that share their keys. `keep` says whether their logits are kept or only the statistics wanted.
template <class T>
inline void first_pass(
    const Problem& problem, Panel<T>* panels, int number, int64_t batch, int64_t key_head, bool keep, MaskTile<T>* mask,
    T* key_scratch) {
  int64_t first = problem.keys, last = 0;
  for (int p = 0; p < number; ++p) {
    if (panels[p].last == 0) continue;
    first = std::min(first, panels[p].first);
    last = std::max(last, panels[p].last);
  }
  for (int64_t start = first / kBlock * kBlock; start < last; start += kBlock) {
    const int64_t stop = std::min<int64_t>(start + kBlock, problem.keys);
    int64_t key_stride;
    const T* keys = rows_of(
        problem.key, batch, key_head, start, stop - start, problem.width, key_scratch, key_stride,
        rows_collide(problem.key));
    for (int p = 0; p < number; ++p) {
      Panel<T>& panel = panels[p];
      const int64_t from = std::max(start, panel.first), to = std::min(stop, panel.last);
      if (from >= to) continue;
      with_vectors(panel.vectors, [&](auto constant) {
        constexpr int vectors = decltype(constant)::value;
        T* tile = keep ? panel.logits + (from - panel.first) * panel.stride() : panel.logits;
        T* peaks = keep ? panel.peaks + start / kBlock * kGroups * panel.stride() : nullptr;
        const int count = static_cast<int>(to - from);
        if (keep && number > 1) { // else the logits stay in the second-level cache anyway
          const int64_t block = static_cast<int64_t>(kBlock) * panel.stride();
          prefetch_to_write(tile + block, block * static_cast<int64_t>(sizeof(T)));
        }
        if (score_block<T, vectors>(
                problem, panel, batch, keys + (from - start) * key_stride, key_stride, from, count, mask, tile))
          gather_statistics<T, vectors>(panel, tile, count, peaks);
        else if (keep)
          std::fill(peaks, peaks + kGroups * panel.stride(), -kInfinity<T>);
      });
    }
  }
}

template <class T>
inline void second_pass(
    const Problem& problem, Panel<T>* panels, int number, int64_t batch, int64_t key_head, T threshold, T* value_scratch,
    T* weights, const T** kept) {
  int64_t first = problem.keys, last = 0;
  for (int p = 0; p < number; ++p) {
    if (panels[p].last == 0) continue;
    first = std::min(first, panels[p].first);
    last = std::max(last, panels[p].last);
  }
  for (int64_t start = first / kBlock * kBlock; start < last; start += kBlock) {
    const int64_t stop = std::min<int64_t>(start + kBlock, problem.keys);
    const T* values = nullptr;
    int64_t value_stride = 0;
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
        if (!values)
          values = rows_of(
              problem.value, batch, key_head, start, stop - start, problem.value_width, value_scratch, value_stride, copied);
        Ahead<T> ahead;
        ahead.logits = number > 1;
        // The first panel fetches for the others, too. Values that are copied are fetched by the copying.
        if (p == 0 && !copied && stop + kBlock <= problem.keys) {
          ahead.values = values + (from - start + kBlock) * value_stride;
          ahead.value_bytes = problem.value_width * static_cast<int64_t>(sizeof(T));
        }
        const int count = weigh_block<T, vectors>(
            panel, panel.logits + (from - panel.first) * panel.stride(), peaks, length, threshold,
            values + (from - start) * value_stride, value_stride, ahead, weights, kept);
        accumulate_values<T, vectors>(kept, weights, count, problem.value_width, panel.output);
      });
    }
  }
}

// Attention of all rows. Memory a thread: `panels_per_task` panels of logits, linear in the number of keys.
template <class T>
inline void attend_panels(const Problem& problem, const T* given_beta, int panels_per_task, const Results<T>& results) {
  const Division<T> division(problem, panels_per_task);
  const int64_t capacity = Panel<T>::capacity;
  const int64_t blocks = (problem.keys + kBlock - 1) / kBlock;
  const T threshold = negligible<T>(problem.keys);
  const T query_factor = problem.softcap > 0 ? T(1) : static_cast<T>(problem.scale);
  run_tasks(division.tasks, work_of(problem), [&](const Take& take) {
    const int64_t longest = std::max(problem.width, problem.value_width);
    Buffer<T> queries(panels_per_task * problem.width * capacity);
    Buffer<T> outputs(panels_per_task * problem.value_width * capacity);
    Buffer<T> logits(panels_per_task * problem.keys * capacity);
    Buffer<T> peaks(panels_per_task * blocks * kGroups * capacity);
    Buffer<T> weights(kBlock * capacity);
    Buffer<T> scratch(kBlock * longest);
    Buffer<const T*> kept(kBlock + 1);
    std::unique_ptr<MaskTile<T>> mask(problem.masked ? new MaskTile<T> : nullptr);
    Panel<T> panels[kMaximumPanels];
    for (int64_t task = take(); task >= 0; task = take()) {
      int64_t batch, key_head, first_head, begin, end;
      division.locate(problem, task, batch, key_head, first_head, begin, end);
      int number = 0;
      for (int64_t row = begin; row < end; row += capacity, ++number) {
        Panel<T>& panel = panels[number];
        open_panel(problem, panel, first_head, row, std::min(end, row + capacity));
        panel.query = queries.get() + number * problem.width * capacity;
        panel.output = outputs.get() + number * problem.value_width * capacity;
        panel.logits = logits.get() + number * problem.keys * capacity;
        panel.peaks = peaks.get() + number * blocks * kGroups * capacity;
        pack_rows(problem.query, panel, batch, problem.width, query_factor, scratch.get(), panel.query);
        std::fill(panel.output, panel.output + problem.value_width * panel.stride(), T(0));
      }
      first_pass(problem, panels, number, batch, key_head, true, mask.get(), scratch.get());
      for (int p = 0; p < number; ++p) {
        Panel<T>& panel = panels[p];
        settle_statistics(problem, panel);
        write_statistics(problem, panel, batch, results);
        choose_beta(problem, panel, batch, given_beta);
        level_rows(panel);
        prepare_weights(panel);
        if (problem.policy == Policy::entropy_target)
          with_vectors(panel.vectors, [&](auto constant) {
            meet_entropy_target<T, decltype(constant)::value>(problem, panel, threshold);
          });
      }
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

template <class T> inline void gather_panels(const Problem& problem, int panels_per_task, const Results<T>& results) {
  const Division<T> division(problem, panels_per_task);
  const int64_t capacity = Panel<T>::capacity;
  const T query_factor = problem.softcap > 0 ? T(1) : static_cast<T>(problem.scale);
  run_tasks(division.tasks, work_of(problem), [&](const Take& take) {
    Buffer<T> queries(panels_per_task * problem.width * capacity);
    Buffer<T> logits(kBlock * capacity);
    Buffer<T> scratch(kBlock * problem.width);
    std::unique_ptr<MaskTile<T>> mask(problem.masked ? new MaskTile<T> : nullptr);
    Panel<T> panels[kMaximumPanels];
    for (int64_t task = take(); task >= 0; task = take()) {
      int64_t batch, key_head, first_head, begin, end;
      division.locate(problem, task, batch, key_head, first_head, begin, end);
      int number = 0;
      for (int64_t row = begin; row < end; row += capacity, ++number) {
        Panel<T>& panel = panels[number];
        open_panel(problem, panel, first_head, row, std::min(end, row + capacity));
        panel.query = queries.get() + number * problem.width * capacity;
        panel.logits = logits.get();
        pack_rows(problem.query, panel, batch, problem.width, query_factor, scratch.get(), panel.query);
      }
      first_pass(problem, panels, number, batch, key_head, false, mask.get(), scratch.get());
      for (int p = 0; p < number; ++p) {
        settle_statistics(problem, panels[p]);
        write_statistics(problem, panels[p], batch, results);
      }
    }
  });
}

} // namespace sharpmax
