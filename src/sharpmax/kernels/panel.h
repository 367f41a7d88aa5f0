// A panel: some rows of queries, side by side in the vector lanes, with their statistics.
#pragma once

#include "halves.h"

namespace sharpmax::SHARPMAX_VARIANT {

constexpr int kPanelVectors = 3;
constexpr int kBlock = 64; // keys that are handled at a time, so that their logits stay in the first-level cache
constexpr int kGroup = 16; // keys whose joint maximum is kept, so that they can be skipped together
constexpr int kGroups = kBlock / kGroup;

// Not above any visible logit, but finite, so that differences with it are defined.
template <class T> constexpr T kFloor = std::numeric_limits<T>::lowest();
template <class T> constexpr T kInfinity = std::numeric_limits<T>::infinity();

// Below this exponent, the weights of all keys together are less than the precision: exp(-18) or exp(-38) of the largest weight.
template <class T> inline T negligible(int64_t keys) {
  return static_cast<T>(-(std::log(static_cast<double>(std::max<int64_t>(keys, 1))) + (sizeof(T) == 8 ? 38. : 18.)));
}

template <class T> struct Panel {
  static constexpr int lanes = Vector<T>::width;
  static constexpr int capacity = kPanelVectors * lanes;

  int rows = 0;    // in use
  int vectors = 0; // lanes in use, in vectors
  int64_t first = 0, last = 0; // keys that any of the rows may see

  int64_t head[capacity], row[capacity];
  alignas(64) Integer<T> first_key[capacity], last_key[capacity];
  alignas(64) T maximum[capacity], mass[capacity], moment[capacity];
  alignas(64) T beta[capacity], total[capacity];
  alignas(64) T anchor[capacity], factor[capacity]; // a weight is exp(factor * (logit - anchor))
  int64_t count[capacity];
  int64_t infinite[capacity]; // logits that are +inf
  bool invalid[capacity];     // NaN was seen

  T* query;         // [width][row], scaled unless there is a softcap; for products in bfloat16 pairs, [width / 2][row], not scaled
  T* logits;        // [last - first][row], or one block if only statistics are wanted
  T* peaks;         // [block][group][row]: the maxima of groups of keys
  T* output;        // [value width][row]

  int stride() const { return vectors * lanes; }
  // Extends [lowest, highest) by the keys that any of the rows may see.
  void extend(int64_t& lowest, int64_t& highest) const {
    if (last == 0) return;
    lowest = std::min(lowest, first);
    highest = std::max(highest, last);
  }
};

// Opens rows `begin` to `end` of a segment. A segment holds the rows of one query head or, if heads are short, those of all
// query heads that share a key head, one after another.
template <class T>
inline void open_panel(const Problem& problem, Panel<T>& panel, int64_t first_head, int64_t begin, int64_t end) {
  constexpr int lanes = Panel<T>::lanes;
  panel.rows = static_cast<int>(end - begin);
  panel.vectors = (panel.rows + lanes - 1) / lanes;
  panel.first = problem.keys;
  panel.last = 0;
  for (int r = 0; r < panel.stride(); ++r) {
    int64_t first = 0, last = 0;
    if (r < panel.rows) {
      panel.head[r] = first_head + (begin + r) / problem.queries;
      panel.row[r] = (begin + r) % problem.queries;
      problem.visible_range(panel.row[r], first, last);
      if (first < last) {
        panel.first = std::min(panel.first, first);
        panel.last = std::max(panel.last, last);
      }
    }
    panel.first_key[r] = static_cast<Integer<T>>(first);
    panel.last_key[r] = static_cast<Integer<T>>(last);
    panel.count[r] = 0;
    panel.maximum[r] = kFloor<T>;
    panel.mass[r] = panel.moment[r] = panel.total[r] = 0;
    panel.infinite[r] = 0;
    panel.invalid[r] = false;
  }
  if (panel.last <= panel.first) panel.first = panel.last = 0;
}

// Packs rows [row][column] of a tensor as [column][row]; unused lanes are zero.
template <class T>
inline void pack_rows(
    const Strided& tensor, const Panel<T>& panel, int64_t batch, int64_t columns, T factor, T* scratch, T* to) {
  const int stride = panel.stride();
  for (int r = 0; r < stride; ++r) {
    if (r >= panel.rows) {
      for (int64_t c = 0; c < columns; ++c) to[c * stride + r] = 0;
      continue;
    }
    const T* from = rows_of(tensor, batch, panel.head[r], panel.row[r], 1, columns, scratch).data;
    for (int64_t c = 0; c < columns; ++c) to[c * stride + r] = factor * from[c];
  }
}

// Packs rows [row][column] in bfloat16 as pairs of columns, [column / 2][row].
template <class T>
inline void pack_pairs(const Strided& tensor, const Panel<T>& panel, int64_t batch, int64_t columns, uint32_t* to) {
  const int stride = panel.stride();
  for (int r = 0; r < stride; ++r) {
    const char* from = r < panel.rows ? address(tensor, batch, panel.head[r], panel.row[r]) : nullptr;
    for (int64_t c = 0; c < columns / 2; ++c) {
      uint32_t pair = 0;
      if (from) std::memcpy(&pair, from + c * sizeof(pair), sizeof(pair));
      to[c * stride + r] = pair;
    }
  }
}

// Packs the queries of the panel.
template <class T> inline void pack_query(const Problem& problem, const Panel<T>& panel, int64_t batch, T* scratch) {
  if (problem.halves)
    pack_pairs(problem.query, panel, batch, problem.width, reinterpret_cast<uint32_t*>(panel.query));
  else
    pack_rows(problem.query, panel, batch, problem.width, static_cast<T>(problem.query_factor()), scratch, panel.query);
}

// softcap * tanh(scale * x / softcap), and in `slopes` (unless null) its derivative by scale * x.
template <class T, int vectors>
inline void cap_logits(T* tile, int count, double softcap, double scale, T* slopes = nullptr) {
  using V = Vector<T>;
  const V inner = V::splat(static_cast<T>(scale / softcap)), outer = V::splat(static_cast<T>(softcap));
  for (int64_t n = 0; n < static_cast<int64_t>(count) * vectors; ++n) {
    T* place = tile + n * V::width;
    const V tangent = hyperbolic_tangent(inner * V::load(place));
    (outer * tangent).store(place);
    if (slopes) (V::splat(T(1)) - tangent * tangent).store(slopes + n * V::width);
  }
}

// Space for the mask of a panel over one block.
template <class T> struct MaskTile {
  alignas(64) T bias[Panel<T>::capacity][kBlock];
  alignas(64) T turned[kBlock][Panel<T>::capacity];
};

// to[n][r] = from[r][n], for whole vectors of rows.
template <class T> inline void turn(const T (*from)[kBlock], int rows, int count, T (*to)[Panel<T>::capacity]) {
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < count; ++n) to[n][r] = from[r][n];
}

#if defined(__AVX2__)
// Squares of eight. `rows` and the room for keys are multiples of eight.
template <> inline void turn<float>(const float (*from)[kBlock], int rows, int count, float (*to)[Panel<float>::capacity]) {
  for (int r = 0; r < rows; r += 8)
    for (int n = 0; n < count; n += 8) {
      __m256 a[8], b[8];
      for (int k = 0; k < 8; ++k) a[k] = _mm256_loadu_ps(from[r + k] + n);
      for (int k = 0; k < 8; k += 2) {
        b[k] = _mm256_unpacklo_ps(a[k], a[k + 1]);
        b[k + 1] = _mm256_unpackhi_ps(a[k], a[k + 1]);
      }
      for (int k = 0; k < 8; k += 4) {
        a[k] = _mm256_shuffle_ps(b[k], b[k + 2], 0x44);
        a[k + 1] = _mm256_shuffle_ps(b[k], b[k + 2], 0xEE);
        a[k + 2] = _mm256_shuffle_ps(b[k + 1], b[k + 3], 0x44);
        a[k + 3] = _mm256_shuffle_ps(b[k + 1], b[k + 3], 0xEE);
      }
      for (int k = 0; k < 4; ++k) {
        _mm256_storeu_ps(to[n + k] + r, _mm256_permute2f128_ps(a[k], a[k + 4], 0x20));
        _mm256_storeu_ps(to[n + k + 4] + r, _mm256_permute2f128_ps(a[k], a[k + 4], 0x31));
      }
    }
}
#endif

// What all rows of the panel see of keys [first, first + count) by a boolean mask, without turning it into numbers.
template <class T>
inline Sight boolean_sight(const Problem& problem, const Panel<T>& panel, int64_t batch, int64_t first, int count, int rows) {
  bool some = false, all = true;
  for (int r = 0; r < rows && !(some && !all); ++r) {
    const char* from = address(problem.mask, batch, panel.head[r], panel.row[r]) + first;
    uint8_t seen = 0;
    if (count == kBlock) // a number that the compiler knows
      for (int n = 0; n < kBlock; ++n) seen += from[n] != 0;
    else
      for (int n = 0; n < count; ++n) seen += from[n] != 0;
    some |= seen > 0;
    all &= seen == count;
  }
  return all ? Sight::open : some ? Sight::mixed : Sight::closed;
}

// Reads the mask for keys [first, first + count) and all rows of the panel. If the result is `mixed`, `tile.turned` holds
// [key][row].
template <class T>
inline Sight read_panel_mask(
    const Problem& problem, const Panel<T>& panel, int64_t batch, int64_t first, int count, MaskTile<T>& tile) {
  const int stride = panel.stride();
  const bool shared = problem.mask.row == 0 && problem.mask.head == 0;
  bool all_open = true, all_closed = true;
  const int distinct = shared ? 1 : panel.rows;
  if (problem.mask.scalar == Scalar::boolean && problem.mask.column == 1) {
    const Sight sight = boolean_sight(problem, panel, batch, first, count, distinct);
    if (sight != Sight::mixed) return sight;
  }
  for (int r = 0; r < distinct; ++r) {
    const Sight sight = mask_row(problem, batch, panel.head[r], panel.row[r], first, count, tile.bias[r]);
    all_open &= sight == Sight::open;
    all_closed &= sight == Sight::closed;
  }
  if (all_open) return Sight::open;
  if (all_closed) return Sight::closed;
  if (shared) {
    for (int n = 0; n < count; ++n)
      for (int r = 0; r < stride; ++r) tile.turned[n][r] = tile.bias[0][n];
  } else {
    for (int r = panel.rows; r < stride; ++r) std::copy(tile.bias[0], tile.bias[0] + count, tile.bias[r]);
    turn<T>(tile.bias, stride, count, tile.turned);
  }
  return Sight::mixed;
}

// Adds the mask, unless it is null, and hides keys that the mask or the position of a row hides.
template <class T, int vectors>
inline void apply_mask(const Panel<T>& panel, int64_t first, int count, const MaskTile<T>* mask, T* tile) {
  using V = Vector<T>;
  const V hidden = V::splat(-kInfinity<T>);
  for (int v = 0; v < vectors; ++v) {
    const Bits<T> low = load_integer<T>(panel.first_key + v * V::width);
    const Bits<T> high = load_integer<T>(panel.last_key + v * V::width);
    for (int n = 0; n < count; ++n) {
      const Bits<T> key = splat_integer<T>(static_cast<Integer<T>>(first + n));
      Bits<T> visible = (key >= low) & (key < high);
      T* place = tile + (static_cast<int64_t>(n) * vectors + v) * V::width;
      V logit = V::load(place);
      if (mask) {
        const V bias = V::load(mask->turned[n] + v * V::width);
        visible &= ~equal(bias, hidden);
        logit += bias;
      }
      select<T>(visible, logit, hidden).store(place);
    }
  }
}

// Whether every row of the panel may see all of [first, first + count) by position.
template <class T> inline bool all_inside(const Panel<T>& panel, int64_t first, int count) {
  for (int r = 0; r < panel.rows; ++r)
    if (panel.first_key[r] > first || panel.last_key[r] < first + count) return false;
  return true;
}

// Computes the logits of the panel for keys [first, first + count), ready for the softmax. Returns false, and writes nothing, if
// no key is visible. `slopes`, unless null, takes the derivative of the softcap. `halves`, unless null, are the keys in bfloat16.
template <class T, int vectors>
inline bool score_block(
    const Problem& problem, Panel<T>& panel, int64_t batch, Rows<T> keys, int64_t first, int count, MaskTile<T>* mask, T* tile,
    T* slopes = nullptr, Rows<BFloat16> halves = {}) {
  Sight sight = Sight::open;
  if (mask) {
    sight = read_panel_mask(problem, panel, batch, first, count, *mask);
    if (sight == Sight::closed) return false;
  }
  if constexpr (sizeof(T) == 4) {
    if (halves.data) {
      const auto* query = reinterpret_cast<const uint32_t*>(panel.query);
      const float factor = static_cast<float>(problem.query_factor());
      multiply_halves<vectors>(halves, count, query, problem.width / 2, factor, tile);
    }
  }
  if (!halves.data) multiply_keys<T, vectors>(keys, count, panel.query, problem.width, tile);
  if (problem.softcap > 0) cap_logits<T, vectors>(tile, count, problem.softcap, problem.scale, slopes);
  if (sight == Sight::mixed)
    apply_mask<T, vectors>(panel, first, count, mask, tile);
  else if (!all_inside(panel, first, count))
    apply_mask<T, vectors>(panel, first, count, nullptr, tile);
  return true;
}

// Records +inf and NaN in rows whose maximum is +inf. The sums of such a row are meaningless and replaced at the end.
template <class T> __attribute__((noinline)) void note_infinite(Panel<T>& panel, const T* tile, int count) {
  const int stride = panel.stride();
  for (int r = 0; r < panel.rows; ++r) {
    if (panel.maximum[r] != kInfinity<T>) continue;
    if (panel.infinite[r] == 0 && std::isnan(panel.mass[r])) panel.invalid[r] = true;
    for (int n = 0; n < count; ++n) {
      const T value = tile[static_cast<int64_t>(n) * stride + r];
      panel.infinite[r] += value == kInfinity<T>;
      panel.invalid[r] |= std::isnan(value);
    }
    panel.mass[r] = 0; // finite, so that a NaN seen here is not mistaken for an earlier one
  }
}

// Counts the visible logits of a block, lane by lane. Logits that the product made -inf are not visible.
template <class T> __attribute__((noinline)) void count_visible(Panel<T>& panel, const T* tile, int count) {
  const int stride = panel.stride();
  for (int n = 0; n < count; ++n)
    for (int r = 0; r < panel.rows; ++r)
      panel.count[r] += tile[static_cast<int64_t>(n) * stride + r] != -kInfinity<T>;
}

// Merges count, maximum, mass and moment of a block into those of the rows. `peaks`, unless null, takes the maxima of its groups.
template <class T, int vectors>
inline void gather_statistics(Panel<T>& panel, const T* tile, int count, T* peaks) {
  using V = Vector<T>;
  constexpr int rows = vectors * V::width;
  V peak[vectors], before[vectors], lowest[vectors];
  for (int v = 0; v < vectors; ++v) {
    peak[v] = V::splat(-kInfinity<T>);
    lowest[v] = V::splat(kInfinity<T>);
  }
  for (int first = 0; first < count; first += kGroup) {
    V highest[vectors];
    for (int v = 0; v < vectors; ++v) highest[v] = V::splat(-kInfinity<T>);
    for (int n = first; n < std::min(first + kGroup, count); ++n)
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        const V logit = V::load(tile + n * rows + v * V::width);
        highest[v] = larger(logit, highest[v]);
        lowest[v] = smaller(logit, lowest[v]);
      }
    for (int v = 0; v < vectors; ++v) {
      if (peaks) highest[v].store(peaks + first / kGroup * rows + v * V::width);
      peak[v] = larger(highest[v], peak[v]);
    }
  }
  Bits<T> rises{}, overflows{}, hides{};
  for (int v = 0; v < vectors; ++v) {
    before[v] = V::load(panel.maximum + v * V::width);
    peak[v] = larger(peak[v], before[v]);
    rises |= greater(peak[v], before[v]);
    overflows |= equal(peak[v], V::splat(kInfinity<T>));
    hides |= equal(lowest[v], V::splat(-kInfinity<T>));
    peak[v].store(panel.maximum + v * V::width);
  }
  if (any<T>(hides))
    count_visible(panel, tile, count);
  else
    for (int r = 0; r < panel.rows; ++r) panel.count[r] += count;
  if (__builtin_expect(any<T>(overflows), 0)) note_infinite(panel, tile, count);
  V mass[vectors], moment[vectors];
  for (int v = 0; v < vectors; ++v) mass[v] = moment[v] = V::zero();
  for (int n = 0; n < count; ++n)
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) {
      // The bound also keeps 0 * -inf out of the moment.
      const V difference = bounded(V::load(tile + n * rows + v * V::width) - peak[v]);
      const V weight = exp_bounded(difference);
      mass[v] += weight;
      moment[v] += difference * weight;
    }
  for (int v = 0; v < vectors; ++v) {
    const int at = v * V::width;
    V old_mass = V::load(panel.mass + at), old_moment = V::load(panel.moment + at);
    if (any<T>(rises)) {
      const V shift = bounded(before[v] - peak[v]);
      const V decay = exp_bounded(shift);
      old_moment = decay * (old_moment + shift * old_mass);
      old_mass = decay * old_mass;
    }
    (old_mass + mass[v]).store(panel.mass + at);
    (old_moment + moment[v]).store(panel.moment + at);
  }
}

// Completes the statistics after all keys: rows without keys, with NaN or with +inf, and the sink that counts.
template <class T> inline void settle_statistics(const Problem& problem, Panel<T>& panel) {
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  for (int r = 0; r < panel.rows; ++r) {
    if (panel.infinite[r] > 0) {
      panel.mass[r] = static_cast<T>(panel.infinite[r]);
      panel.moment[r] = 0;
    }
    panel.invalid[r] |= std::isnan(panel.mass[r]);
    if (panel.invalid[r]) {
      panel.maximum[r] = panel.mass[r] = panel.moment[r] = nan;
    } else if (panel.mass[r] == 0) {
      panel.maximum[r] = -kInfinity<T>;
      panel.moment[r] = 0;
    }
    const double sink = problem.counted_sink(panel.head[r]), maximum = panel.maximum[r];
    if (sink == -kInfinity<double>) continue;
    ++panel.count[r];
    if (panel.invalid[r] || std::isnan(sink)) {
      panel.invalid[r] = true;
      panel.maximum[r] = panel.mass[r] = panel.moment[r] = nan;
    } else if (sink == maximum) {
      panel.mass[r] += 1;
    } else if (sink > maximum) {
      const double shift = std::max(maximum - sink, -1e6), decay = std::exp(shift);
      panel.moment[r] = static_cast<T>(decay * (panel.moment[r] + shift * panel.mass[r]));
      panel.mass[r] = static_cast<T>(decay * panel.mass[r] + 1);
      panel.maximum[r] = static_cast<T>(sink);
    } else if (maximum < kInfinity<double>) {
      const double weight = std::exp(sink - maximum);
      panel.mass[r] = static_cast<T>(panel.mass[r] + weight);
      panel.moment[r] = static_cast<T>(panel.moment[r] + (sink - maximum) * weight);
    }
  }
}

// Whether any row gives a key of the group a weight that is not negligible.
template <class T, int vectors>
SHARPMAX_INLINE bool group_matters(const Panel<T>& panel, const T* peaks, T threshold) {
  using V = Vector<T>;
  Bits<T> matters{};
  for (int v = 0; v < vectors; ++v) {
    const int at = v * V::width;
    const V exponent = V::load(panel.factor + at) * (V::load(peaks + at) - V::load(panel.anchor + at));
    matters |= greater(exponent, V::splat(threshold));
  }
  return any<T>(matters);
}

template <class T> inline double entropy_of(T mass, T moment) {
  if (mass == 0) return 0;
  return std::max(std::log(static_cast<double>(mass)) - static_cast<double>(moment) / static_cast<double>(mass), 0.);
}

} // namespace sharpmax::SHARPMAX_VARIANT
