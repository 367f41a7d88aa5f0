// Gradients. The logits are computed again, a tile of rows and keys at a time, so that memory stays linear. With p = softmax(beta e),
// d_j = e_j - maximum, dp_j = dO · v_j, D = dO · O - dlogmass, the gradient of a logit is
//   beta p_j (dp_j - D)  +  exp(d_j) (a0 + c0 d_j)  +  p_j (a1 + c1 d_j),
// the last two (gradients that reach the row through its statistics) only if their coefficients are given.
#pragma once

#include <vector>

#include "forward.h"

namespace sharpmax::SHARPMAX_VARIANT {

// What the backward pass knows of each row, [batch, head, row]; null if absent. Of each pair (a, c) both or none are given.
template <class T> struct RowInputs {
  const T *beta, *logmass, *maximum, *of_logmass, *a0, *c0, *a1, *c1; // of_logmass: dL/dlogmass
};

template <class T> struct RowTerms {
  static constexpr int capacity = Panel<T>::capacity;
  alignas(64) T logmass[capacity]; // a weight is exp(factor * (e - anchor) - logmass)
  alignas(64) T inner[capacity];   // D
  alignas(64) T slope[capacity];   // beta, or zero where only the maxima have weight
  alignas(64) Integer<T> hard[capacity]; // all ones where beta is infinite
  alignas(64) T a0[capacity], c0[capacity], a1[capacity], c1[capacity];
};

template <class T> struct BackwardPanel {
  Panel<T> panel;
  RowTerms<T> terms;
  T *queries, *upstream;    // natural: [row][padded width]; for products in bfloat16 pairs, [row / 2][padded width]
  T *upstream_turned;       // [value width][row], or pairs, [value width / 2][row]
  T *query_gradient;        // [width][row]
  double sums[4][Panel<T>::capacity]; // over keys of p d (dp - D), p, p d and p d^2
};

template <class T> constexpr int64_t padded(int64_t width) {
  return (width + Vector<T>::width - 1) / Vector<T>::width * Vector<T>::width;
}

template <class T>
inline void copy_rows(const Strided& tensor, const Panel<T>& panel, int64_t batch, int64_t columns, T* to) {
  const int64_t stride = padded<T>(columns);
  for (int r = 0; r < panel.rows; ++r) {
    convert(tensor.scalar, address(tensor, batch, panel.head[r], panel.row[r]), columns, to + r * stride);
    std::fill(to + r * stride + columns, to + (r + 1) * stride, T(0));
  }
}

// Rows in bfloat16 in pairs, [row / 2][padded columns].
template <class T>
inline void copy_pairs(const Strided& tensor, const Panel<T>& panel, int64_t batch, int64_t columns, uint32_t* to) {
  const int64_t stride = padded<T>(columns);
  for (int r = 0; r < panel.rows; r += 2, to += stride) {
    const auto row = [&](int at) {
      return reinterpret_cast<const uint16_t*>(address(tensor, batch, panel.head[at], panel.row[at]));
    };
    const uint16_t *one = row(r), *other = r + 1 < panel.rows ? row(r + 1) : nullptr;
    for (int64_t c = 0; c < columns; ++c) to[c] = one[c] | static_cast<uint32_t>(other ? other[c] : 0) << 16;
    std::fill(to + columns, to + stride, 0);
  }
}

template <class T>
inline void prepare_terms(
    const Problem& problem, const Strided& output, const RowInputs<T>& inputs, int64_t batch, BackwardPanel<T>& state,
    T* scratch) {
  Panel<T>& panel = state.panel;
  RowTerms<T>& terms = state.terms;
  const int64_t stride = padded<T>(problem.value_width);
  for (int r = 0; r < panel.stride(); ++r) {
    terms.logmass[r] = terms.inner[r] = terms.slope[r] = 0;
    terms.a0[r] = terms.c0[r] = terms.a1[r] = terms.c1[r] = 0;
    terms.hard[r] = 0;
    panel.beta[r] = 1;
    if (r >= panel.rows) continue;
    const int64_t at = problem.place(batch, panel.head[r], panel.row[r]);
    panel.maximum[r] = inputs.maximum[at];
    panel.invalid[r] = false;
    convert(output.scalar, address(output, batch, panel.head[r], panel.row[r]), problem.value_width, scratch);
    double inner = 0;
    for (int64_t c = 0; c < problem.value_width; ++c)
      inner += static_cast<double>(scratch[c]) * static_cast<double>(state.upstream[r * stride + c]);
    if (inputs.of_logmass) inner -= inputs.of_logmass[at];
    terms.inner[r] = static_cast<T>(inner);
    if (panel.maximum[r] == -kInfinity<T>) continue; // no keys: weights are zero and stay so
    panel.beta[r] = inputs.beta[at];
    terms.logmass[r] = inputs.logmass[at];
    if (panel.maximum[r] == kInfinity<T>) continue; // nothing flows back
    terms.hard[r] = panel.beta[r] == kInfinity<T> ? -1 : 0;
    terms.slope[r] = terms.hard[r] ? T(0) : panel.beta[r];
    if (inputs.c0) {
      terms.a0[r] = inputs.a0[at];
      terms.c0[r] = inputs.c0[at];
    }
    if (inputs.c1) {
      terms.a1[r] = inputs.a1[at];
      terms.c1[r] = inputs.c1[at];
    }
  }
  prepare_weights(panel);
  for (int r = 0; r < panel.rows; ++r)
    if (terms.hard[r]) panel.anchor[r] = panel.maximum[r];
}

// Rows of keys or values without NaN and infinities, which become zeros in a copy. What a row does not see has no gradient, whatever
// it is; and a row that sees one is NaN all over.
template <class T> inline Rows<T> finite_rows(Rows<T> from, int64_t count, int64_t columns, T* scratch) {
  using V = Vector<T>;
  const int64_t whole = columns / V::width * V::width;
  V sums = V::zero(); // of zero times each number: NaN if one is not finite
  T rest = 0;
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t c = 0; c < whole; c += V::width) sums += T(0) * V::load(from[n] + c);
    for (int64_t c = whole; c < columns; ++c) rest += T(0) * from[n][c];
  }
  if (!any<T>(~equal(sums, V::zero())) && rest == 0) return from;
  for (int64_t n = 0; n < count; ++n)
    for (int64_t c = 0; c < columns; ++c) scratch[n * columns + c] = std::isfinite(from[n][c]) ? from[n][c] : T(0);
  return {scratch, columns};
}

// In rows whose maximum is +inf: 0 against -inf, as in the second pass forward.
template <class T> inline void level_tile(const Panel<T>& panel, T* tile, int count) {
  for (int r = 0; r < panel.rows; ++r)
    if (panel.maximum[r] == kInfinity<T>) level(tile + r, count, panel.stride(), kInfinity<T>);
}

// Whether a weight of the block is not negligible; also true of NaN.
template <class T, int vectors>
inline bool tile_matters(const BackwardPanel<T>& state, const T* tile, int count, T threshold) {
  using V = Vector<T>;
  constexpr int rows = vectors * V::width;
  V peak[vectors];
  Bits<T> undefined{};
  for (int v = 0; v < vectors; ++v) peak[v] = V::splat(-kInfinity<T>);
  for (int n = 0; n < count; ++n)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      const V logit = V::load(tile + n * rows + v * V::width);
      peak[v] = larger(logit, peak[v]);
      undefined |= ~equal(logit, logit);
    }
  Bits<T> matters = undefined;
  for (int v = 0; v < vectors; ++v) {
    const int at = v * V::width;
    const V exponent = V::load(state.panel.factor + at) * (peak[v] - V::load(state.panel.anchor + at)) -
        V::load(state.terms.logmass + at);
    matters |= ~greater(V::splat(threshold), exponent);
  }
  return any<T>(matters);
}

// From logits and dp to weights and gradients of the logits, in place: `tile` e -> gradient, `weights` dp -> p. Adds to the first
// sum of the rows, which is the gradient by beta.
template <class T, int vectors, bool extra>
inline void differentiate_tile(BackwardPanel<T>& state, int count, T* tile, T* weights) {
  using V = Vector<T>;
  constexpr int rows = vectors * V::width;
  const RowTerms<T>& terms = state.terms;
  for (int v = 0; v < vectors; ++v) {
    const int at = v * V::width;
    const V anchor = V::load(state.panel.anchor + at), factor = V::load(state.panel.factor + at);
    const V logmass = V::load(terms.logmass + at), inner = V::load(terms.inner + at), slope = V::load(terms.slope + at);
    const Bits<T> hard = load_integer<T>(terms.hard + at);
    V by_beta = V::zero();
    for (int n = 0; n < count; ++n) {
      const int64_t place = static_cast<int64_t>(n) * rows + at;
      const V logit = V::load(tile + place), raw = logit - anchor;
      // What is hidden stays out of it, in a row that is NaN as well. In a hard row all but the maxima lose their weight.
      const V exponent = factor * raw - logmass;
      const Bits<T> hidden = equal(logit, V::splat(-kInfinity<T>));
      const Bits<T> lost = hidden | greater(V::splat(kLost<T>), exponent) | (hard & ~equal(raw, V::zero()));
      const V weight = select<T>(lost, V::zero(), exp_nonpositive(exponent));
      // Finite even where a key is hidden: its weight is zero, and zero times this must be zero.
      const V distance = larger(V::splat(T(-1e9)), raw);
      const V apart = weight * (V::load(weights + place) - inner);
      V gradient = slope * apart;
      by_beta += apart * distance;
      if constexpr (extra) {
        gradient += exp_nonpositive(raw) * (V::load(terms.c0 + at) * distance + V::load(terms.a0 + at));
        gradient += weight * (V::load(terms.c1 + at) * distance + V::load(terms.a1 + at));
      }
      weight.store(weights + place);
      select<T>(hidden, V::zero(), gradient).store(tile + place);
    }
    for (int lane = 0; lane < V::width; ++lane) state.sums[0][at + lane] += by_beta.lanes[lane];
  }
}

template <class T> struct Backward {
  const Problem& problem;
  Strided upstream, output; // [batch, query head, row, value width]
  RowInputs<T> inputs;
  sharpmax_writable query_gradient{}, key_gradient{}, value_gradient{}; // in the types of query, key, value
  T* mask_gradient = nullptr;                           // [batch, head, row, key], zeroed
  T* sink_gradient = nullptr;                           // [batch, head, row]; summed by the caller
  T* by_beta = nullptr;                                 // [batch, head, row]: dL/dbeta, unless null
  // If given, only these and dL/dbeta are computed, [batch, head, row]: mean and variance of the logits under the tempered weights
  // of all keys, a counted sink included.
  T *mean = nullptr, *variance = nullptr;

  // Gradients of keys and values of one unit as far as some of its rows go, [key][padded width].
  struct Share {
    std::unique_ptr<Buffer<T>> own_keys, own_values;
    T *keys = nullptr, *values = nullptr;
  };

  void run() {
    const int64_t units = problem.batches * problem.key_heads;
    if (units == 0) return;
    const Division<T> division(problem, kMaximumPanels);
    const int64_t chunks = division.segments_per_key_head * division.tasks_per_segment;
    const int64_t threads = problem.threads;
    // Where units would leave threads idle, the rows of each are dealt out in turn; each part has its own sums.
    const int64_t parts = units % threads == 0 || units >= 4 * threads ? 1 : std::clamp<int64_t>(threads, 1, std::max<int64_t>(chunks, 1));
    const int64_t key_stride = padded<T>(problem.width), value_stride = padded<T>(problem.value_width);
    // Sums go straight to where adjacent rows take as many numbers as they do in a share.
    const auto direct = [parts](const Strided& of, const sharpmax_writable& gradient, int64_t width, int64_t stride) {
      return parts == 1 && of.scalar == native_scalar<T>() && stride == width && gradient.row == width;
    };
    const bool direct_keys = direct(problem.key, key_gradient, problem.width, key_stride);
    const bool direct_values = direct(problem.value, value_gradient, problem.value_width, value_stride);
    std::vector<Share> shares(parts > 1 ? units * parts : 0);
    const int64_t work = 3 * work_of(problem);
    run_tasks(problem, units * parts, work, [&](const Take& take) {
      Workspace workspace(problem);
      for (int64_t task = take(); task >= 0; task = take()) {
        const int64_t unit = task / parts, part = task % parts;
        Share share;
        if (!direct_keys) share.own_keys.reset(new Buffer<T>(problem.keys * key_stride));
        if (!direct_values) share.own_values.reset(new Buffer<T>(problem.keys * value_stride));
        share.keys = direct_keys ? in_place(key_gradient, unit) : share.own_keys->get();
        share.values = direct_values ? in_place(value_gradient, unit) : share.own_values->get();
        std::fill(share.keys, share.keys + problem.keys * key_stride, T(0));
        std::fill(share.values, share.values + problem.keys * value_stride, T(0));
        for (int64_t chunk = part; chunk < chunks; chunk += parts)
          differentiate_rows(division, unit * chunks + chunk, workspace, share);
        if (parts > 1)
          shares[task] = std::move(share);
        else
          deliver(unit, &share, 1, workspace.line.get());
      }
    });
    if (parts > 1)
      run_tasks(problem, units, work, [&](const Take& take) {
        Buffer<T> line(std::max(key_stride, value_stride));
        for (int64_t unit = take(); unit >= 0; unit = take()) deliver(unit, shares.data() + unit * parts, parts, line.get());
      });
  }

  void run_rows(int panels_per_task) {
    const Division<T> division(problem, panels_per_task);
    run_tasks(problem, division.tasks, work_of(problem), [&](const Take& take) {
      Workspace workspace(problem);
      Share none;
      for (int64_t task = take(); task >= 0; task = take()) differentiate_rows(division, task, workspace, none);
    });
  }

 private:
  T* in_place(const sharpmax_writable& gradient, int64_t unit) const {
    const int64_t batch = unit / problem.key_heads, head = unit % problem.key_heads;
    return reinterpret_cast<T*>(address(gradient, native_scalar<T>(), batch, head, 0));
  }

  struct Workspace {
    static constexpr int64_t capacity = Panel<T>::capacity, rows = kMaximumPanels * capacity;
    const Problem& problem;
    const int64_t width = problem.width, value_width = problem.value_width;
    Buffer<T> queries{rows * padded<T>(width)}, upstream{rows * padded<T>(value_width)};
    Buffer<T> turned_queries{rows * width}, turned_upstream{rows * value_width}, query_gradients{rows * width};
    Buffer<T> tile{kBlock * capacity}, weights{kBlock * capacity}, slopes{kBlock * capacity};
    Buffer<T> keys{kBlock * width}, values{kBlock * value_width};
    Buffer<T> finite_keys{kBlock * width}, finite_values{kBlock * value_width};
    Buffer<T> line{padded<T>(std::max(width, value_width))};
    Buffer<const T*> addresses{kBlock};
    alignas(64) uint32_t rounded[kBlock * capacity / 2]; // a tile in bfloat16
    std::unique_ptr<MaskTile<T>> mask{problem.masked ? new MaskTile<T> : nullptr};
    BackwardPanel<T> panels[kMaximumPanels];

    explicit Workspace(const Problem& problem_) : problem(problem_) {
      for (int p = 0; p < kMaximumPanels; ++p) {
        BackwardPanel<T>& state = panels[p];
        const int64_t row = p * capacity;
        state.queries = queries.get() + row * padded<T>(width);
        state.upstream = upstream.get() + row * padded<T>(value_width);
        state.panel.query = turned_queries.get() + row * width;
        state.upstream_turned = turned_upstream.get() + row * value_width;
        state.query_gradient = query_gradients.get() + row * width;
      }
    }
  };

  // Keys and values of a block, either in the type of the sums or in bfloat16.
  struct Block {
    Rows<T> keys, finite_keys, values;
    Rows<BFloat16> key_halves, value_halves;

    Block from(int64_t n) const {
      return {keys.from(n), finite_keys.from(n), values.from(n), key_halves.from(n), value_halves.from(n)};
    }
  };

  void differentiate_rows(const Division<T>& division, int64_t task, Workspace& workspace, Share& share) {
    const Stretch rows = division.locate(problem, task);
    const int64_t batch = rows.batch, key_head = rows.key_head;
    const T threshold = negligible<T>(problem.keys);
    int number = 0;
    int64_t first = problem.keys, last = 0;
    for (int64_t row = rows.begin; row < rows.end; row += Panel<T>::capacity, ++number) {
      BackwardPanel<T>& state = workspace.panels[number];
      Panel<T>& panel = state.panel;
      T* line = workspace.line.get();
      open_panel(problem, panel, rows.first_head, row, std::min<int64_t>(rows.end, row + Panel<T>::capacity));
      pack_query(problem, panel, batch, line);
      copy_rows(upstream, panel, batch, problem.value_width, state.upstream);
      prepare_terms(problem, output, inputs, batch, state, line);
      if (problem.halves) {
        const auto pairs = [](T* numbers) { return reinterpret_cast<uint32_t*>(numbers); };
        pack_pairs(upstream, panel, batch, problem.value_width, pairs(state.upstream_turned));
        copy_pairs(problem.query, panel, batch, problem.width, pairs(state.queries));
        copy_pairs(upstream, panel, batch, problem.value_width, pairs(state.upstream));
      } else {
        pack_rows(upstream, panel, batch, problem.value_width, T(1), line, state.upstream_turned);
        copy_rows(problem.query, panel, batch, problem.width, state.queries);
      }
      std::memset(state.sums, 0, sizeof(state.sums));
      std::fill(state.query_gradient, state.query_gradient + problem.width * panel.stride(), T(0));
      for (int r = 0; r < panel.rows && !problem.halves; ++r) // a row that sees nothing gives nothing, whatever its query
        if (panel.maximum[r] == -kInfinity<T>)
          std::fill_n(state.queries + r * padded<T>(problem.width), problem.width, T(0));
      panel.extend(first, last);
    }
    for (int p = 0; p < number; ++p) find_maxima(workspace.panels[p].panel, batch, key_head, workspace);
    for (int64_t start = first / kBlock * kBlock; start < last; start += kBlock) {
      const int64_t stop = std::min<int64_t>(start + kBlock, problem.keys);
      const Block block = problem.halves ? halves_at(batch, key_head, start) : block_at(batch, key_head, start, stop, workspace);
      for (int p = 0; p < number; ++p) {
        BackwardPanel<T>& state = workspace.panels[p];
        const int64_t from = std::max(start, state.panel.first), to = std::min(stop, state.panel.last);
        if (from >= to) continue;
        with_vectors(state.panel.vectors, [&](auto constant) {
          differentiate_block<decltype(constant)::value>(
              state, batch, from, static_cast<int>(to - from), block.from(from - start), threshold, workspace, share);
        });
      }
    }
    for (int p = 0; p < number; ++p) {
      BackwardPanel<T>& state = workspace.panels[p];
      if (by_beta)
        for (int r = 0; r < state.panel.rows; ++r) write_moments(state, r, batch);
      if (!mean) write_rows(state, batch, workspace.line.get());
    }
  }

  Block block_at(int64_t batch, int64_t key_head, int64_t start, int64_t stop, Workspace& workspace) const {
    const auto rows = [&](const Strided& tensor, int64_t columns, T* scratch) {
      return rows_of(tensor, batch, key_head, start, stop - start, columns, scratch, rows_collide(tensor));
    };
    Block found;
    found.keys = found.finite_keys = rows(problem.key, problem.width, workspace.keys.get());
    found.values = rows(problem.value, problem.value_width, workspace.values.get());
    found.values = finite_rows(found.values, stop - start, problem.value_width, workspace.finite_values.get());
    if (!mean) found.finite_keys = finite_rows(found.keys, stop - start, problem.width, workspace.finite_keys.get());
    return found;
  }

  Block halves_at(int64_t batch, int64_t key_head, int64_t start) const {
    const auto rows = [&](const Strided& tensor) {
      return Rows<BFloat16>{reinterpret_cast<const BFloat16*>(address(tensor, batch, key_head, start)), tensor.row};
    };
    Block found;
    found.key_halves = rows(problem.key);
    found.value_halves = rows(problem.value);
    return found;
  }

  // The largest logits of rows that were chosen hard, as they come out here: forward, the products may have been added up in
  // another order, and the choice rests on equality.
  void find_maxima(Panel<T>& panel, int64_t batch, int64_t key_head, Workspace& workspace) {
    bool hard = false;
    for (int r = 0; r < panel.rows; ++r) hard |= panel.beta[r] == kInfinity<T> && std::isfinite(panel.maximum[r]);
    if (!hard) return;
    const int stride = panel.stride();
    T found[Panel<T>::capacity];
    std::fill(found, found + Panel<T>::capacity, -kInfinity<T>);
    for (int64_t start = panel.first; start < panel.last; start += kBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kBlock, panel.last - start));
      const Rows<T> keys = rows_of(problem.key, batch, key_head, start, count, problem.width, workspace.keys.get());
      with_vectors(panel.vectors, [&](auto constant) {
        T* tile = workspace.tile.get();
        if (!score_block<T, decltype(constant)::value>(
                problem, panel, batch, keys, start, count, workspace.mask.get(), tile))
          return;
        for (int n = 0; n < count; ++n)
          for (int r = 0; r < panel.rows; ++r) found[r] = std::max(found[r], tile[n * stride + r]);
      });
    }
    for (int r = 0; r < panel.rows; ++r) {
      // A sink above all keys is the choice; then no key is.
      const bool sunk = problem.counted_sink(panel.head[r]) > found[r];
      if (panel.beta[r] == kInfinity<T> && std::isfinite(panel.maximum[r]) && !sunk)
        panel.anchor[r] = panel.maximum[r] = found[r];
    }
  }

  template <int vectors>
  void differentiate_block(
      BackwardPanel<T>& state, int64_t batch, int64_t first, int count, const Block& block, T threshold, Workspace& workspace,
      Share& share) {
    constexpr int rows = vectors * Vector<T>::width;
    Panel<T>& panel = state.panel;
    T *tile = workspace.tile.get(), *weights = workspace.weights.get();
    T* slopes = problem.softcap > 0 && !mean ? workspace.slopes.get() : nullptr;
    const bool extra = inputs.c0 || inputs.c1;
    if (!score_block<T, vectors>(
            problem, panel, batch, block.keys, first, count, workspace.mask.get(), tile, slopes,
            problem.halves ? block.key_halves : Rows<BFloat16>{}))
      return;
    level_tile(panel, tile, count);
    if (!inputs.c0 && !tile_matters<T, vectors>(state, tile, count, threshold)) return;
    if constexpr (sizeof(T) == 4) {
      if (problem.halves) {
        const auto* turned = reinterpret_cast<const uint32_t*>(state.upstream_turned);
        multiply_halves<vectors>(block.value_halves, count, turned, problem.value_width / 2, 1.f, weights);
      }
    }
    if (!problem.halves) multiply_keys<T, vectors>(block.values, count, state.upstream_turned, problem.value_width, weights);
    if (mean) return add_moments<vectors>(state, count, tile, weights);
    if (extra)
      differentiate_tile<T, vectors, true>(state, count, tile, weights);
    else
      differentiate_tile<T, vectors, false>(state, count, tile, weights);
    if (mask_gradient)
      for (int r = 0; r < panel.rows; ++r) {
        T* to = mask_gradient + problem.place(batch, panel.head[r], panel.row[r]) * problem.keys + first;
        for (int n = 0; n < count; ++n) to[n] = tile[n * rows + r];
      }
    if (slopes)
      for (int n = 0; n < count * rows; ++n) tile[n] = tile[n] == 0 ? T(0) : tile[n] * slopes[n];
    const int64_t key_row = padded<T>(problem.width), value_row = padded<T>(problem.value_width);
    if constexpr (sizeof(T) == 4) {
      if (problem.halves) {
        auto* pairs = reinterpret_cast<uint32_t*>(workspace.keys.get()); // which hold nothing
        const auto outer = [&](const T* factors, const T* dense, int64_t width, T* sums) {
          round_to_pairs(factors, count, panel.rows, rows, workspace.rounded);
          const auto* other = reinterpret_cast<const uint32_t*>(dense);
          accumulate_outer_pairs(workspace.rounded, rows / 2, count, other, (panel.rows + 1) / 2, width, sums + first * width);
        };
        outer(weights, state.upstream, value_row, share.values);
        outer(tile, state.queries, key_row, share.keys);
        const auto addresses = reinterpret_cast<const BFloat16**>(workspace.addresses.get());
        for (int n = 0; n < count; ++n) addresses[n] = block.key_halves[n];
        return accumulate_halves<vectors>(addresses, tile, count, problem.width, pairs, state.query_gradient);
      }
    }
    accumulate_outer<T>(
        weights, rows, count, state.upstream, panel.rows, value_row, value_row, share.values + first * value_row);
    for (int n = 0; n < count; ++n) workspace.addresses[n] = block.finite_keys[n];
    accumulate_values<T, vectors>(workspace.addresses.get(), tile, count, problem.width, state.query_gradient);
    accumulate_outer<T>(tile, rows, count, state.queries, panel.rows, key_row, key_row, share.keys + first * key_row);
  }

  void write_rows(BackwardPanel<T>& state, int64_t batch, T* line) {
    const Panel<T>& panel = state.panel;
    const int stride = panel.stride();
    for (int r = 0; r < panel.rows; ++r) {
      const int64_t at = problem.place(batch, panel.head[r], panel.row[r]);
      for (int64_t d = 0; d < problem.width; ++d)
        line[d] = static_cast<T>(problem.scale) * state.query_gradient[d * stride + r];
      const Scalar scalar = problem.query.scalar;
      convert_back(scalar, line, problem.width, address(query_gradient, scalar, batch, panel.head[r], panel.row[r]));
      if (sink_gradient) sink_gradient[at] = gradient_of_sink(state, r);
    }
  }

  T gradient_of_sink(const BackwardPanel<T>& state, int r) const {
    const Panel<T>& panel = state.panel;
    const RowTerms<T>& terms = state.terms;
    const double sink = problem.sink(panel.head[r]);
    const double maximum = panel.maximum[r], inner = terms.inner[r];
    if (maximum == -kInfinity<double> || sink == -kInfinity<double>) return 0; // no keys, or no sink
    if (maximum == kInfinity<double>) return 0;
    if (!problem.sink_counted) {
      const double scaled = maximum == 0 ? 0 : static_cast<double>(panel.beta[r]) * maximum;
      return static_cast<T>(-inner * std::exp(sink - scaled - terms.logmass[r]));
    }
    const double distance = sink - maximum, factor = panel.factor[r];
    const double weight =
        terms.hard[r] && distance != 0 ? 0 : std::exp((distance == 0 ? 0 : factor * distance) - terms.logmass[r]);
    double gradient = -static_cast<double>(terms.slope[r]) * weight * inner;
    gradient += std::exp(distance) * (terms.a0[r] + terms.c0[r] * distance);
    gradient += weight * (terms.a1[r] + terms.c1[r] * distance);
    return static_cast<T>(gradient);
  }

  // Adds the parts of a unit, in their order, and writes them. Values that were summed in place are finished.
  void deliver(int64_t unit, const Share* parts, int64_t number, T* line) const {
    deliver_rows(unit, parts, number, &Share::keys, problem.key.scalar, problem.width, problem.scale, key_gradient, line);
    if (parts[0].own_values)
      deliver_rows(unit, parts, number, &Share::values, problem.value.scalar, problem.value_width, 1, value_gradient, line);
  }

  void deliver_rows(
      int64_t unit, const Share* parts, int64_t number, T* Share::*sums, Scalar scalar, int64_t width, double scale,
      const sharpmax_writable& to, T* line) const {
    for (int64_t j = 0; j < problem.keys; ++j) {
      for (int64_t d = 0; d < width; ++d) {
        T sum = (parts[0].*sums)[j * padded<T>(width) + d];
        for (int64_t n = 1; n < number; ++n) sum += (parts[n].*sums)[j * padded<T>(width) + d];
        line[d] = static_cast<T>(scale) * sum;
      }
      convert_back(scalar, line, width, address(to, scalar, unit / problem.key_heads, unit % problem.key_heads, j));
    }
  }

  template <int vectors>
  static void add_moments(BackwardPanel<T>& state, int count, const T* tile, const T* products) {
    using V = Vector<T>;
    constexpr int rows = vectors * V::width;
    for (int v = 0; v < vectors; ++v) {
      const int at = v * V::width;
      const V anchor = V::load(state.panel.anchor + at), factor = V::load(state.panel.factor + at);
      const V logmass = V::load(state.terms.logmass + at), inner = V::load(state.terms.inner + at);
      V part[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
      for (int n = 0; n < count; ++n) {
        const int64_t place = static_cast<int64_t>(n) * rows + at;
        const V logit = V::load(tile + place), distance = larger(V::splat(T(-1e9)), logit - anchor);
        const Bits<T> hidden = equal(logit, V::splat(-kInfinity<T>));
        const V weight = select<T>(hidden, V::zero(), exp_nonpositive(factor * distance - logmass));
        const V once = weight * distance;
        part[0] += once * (V::load(products + place) - inner);
        part[1] += weight;
        part[2] += once;
        part[3] += once * distance;
      }
      for (int k = 0; k < 4; ++k)
        for (int lane = 0; lane < V::width; ++lane) state.sums[k][at + lane] += part[k].lanes[lane];
    }
  }

  void write_moments(const BackwardPanel<T>& state, int r, int64_t batch) const {
    const Panel<T>& panel = state.panel;
    const int64_t at = problem.place(batch, panel.head[r], panel.row[r]);
    const double maximum = panel.maximum[r], beta = panel.beta[r], inner = state.terms.inner[r];
    if (maximum == -kInfinity<double> || is_leveled(panel, r)) {
      put(by_beta, at, T(0));
      put(mean, at, T(0));
      put(variance, at, T(0));
      return;
    }
    double slope = state.sums[0][r], weight = state.sums[1][r], once = state.sums[2][r], twice = state.sums[3][r];
    const double sink = problem.has_sink() ? problem.sink(panel.head[r]) : -kInfinity<double>;
    if (sink > -kInfinity<double>) {
      const double distance = sink - maximum;
      if (problem.sink_counted) {
        const double of_sink = std::exp((distance == 0 ? 0 : beta * distance) - state.terms.logmass[r]);
        slope -= of_sink * inner * distance;
        weight += of_sink;
        once += of_sink * distance;
        twice += of_sink * distance * distance;
      } else {
        // beta does not multiply this sink, so the gradient is not free of the logits' common offset.
        const double scaled = maximum == 0 ? 0 : beta * maximum;
        slope += maximum * inner * std::exp(sink - scaled - state.terms.logmass[r]);
      }
    }
    const double average = weight > 0 || std::isnan(weight) ? once / weight : 0;
    put(by_beta, at, static_cast<T>(slope));
    put(mean, at, static_cast<T>(maximum + average));
    put(variance, at, static_cast<T>(weight > 0 ? std::max(twice / weight - average * average, 0.) : 0.));
  }
};

} // namespace sharpmax::SHARPMAX_VARIANT
