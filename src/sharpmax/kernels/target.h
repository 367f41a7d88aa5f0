// Solves for the beta at which the entropy of a row is the target, for all rows of a panel at once.
#pragma once

#include "panel.h"

namespace sharpmax::SHARPMAX_VARIANT {

// Moments of the logits' distances to the maximum under the weights: sum of w, w d, w d^2, w d^3.
template <class T> struct Moments {
  alignas(64) T sums[4][Panel<T>::capacity];
};

// The polynomials of 2^f for |f| <= 1/2 with relative errors of 7e-5 and 3e-6, highest power first.
constexpr float kRough[] = {0.0551716688f, 0.242611148f, 0.693260988f, 0.999928072f};
constexpr float kFair[] = {0.00957010188f, 0.0559178639f, 0.240247449f, 0.693121814f, 0.999999261f};

// 2^x for -125 <= x <= 0 (float) or -1021 <= x <= 0 (double). The exponent is added to the bits of the polynomial, which takes
// another unit of the processor than the products.
template <class T, class Coefficients>
SHARPMAX_INLINE typename Vector<T>::Native power_of_two(typename Vector<T>::Native x, const Coefficients& coefficients) {
  using Native = typename Vector<T>::Native;
  constexpr int mantissa = PowerOfTwo<T>::mantissa;
  constexpr T shift = PowerOfTwo<T>::shift - (sizeof(T) == 8 ? T(1023) : T(127)); // rounds to an integer in the low bits
  const Native rounded = x + shift, f = x - (rounded - shift);
  Native p = coefficients[0] - Native{};
  for (size_t k = 1; k < std::size(coefficients); ++k) p = p * f + coefficients[k];
  return (Native)((Bits<T>)p + ((Bits<T>)rounded << mantissa));
}

// Sums the moments of all rows at their factors. `coefficients` are those of 2^f.
template <class T, int vectors, class Coefficients>
inline void gather_moments(const Panel<T>& panel, T threshold, const Coefficients& coefficients, Moments<T>& moments) {
  using V = Vector<T>;
  using Native = typename V::Native;
  constexpr int rows = vectors * V::width;
  constexpr T log2e = static_cast<T>(1.44269504088896340736), least = sizeof(T) == 8 ? T(-1021) : T(-125);
  Native anchor[vectors], factor[vectors], farthest[vectors], sums[vectors][4];
  for (int v = 0; v < vectors; ++v) {
    anchor[v] = V::load(panel.anchor + v * V::width).lanes;
    factor[v] = V::load(panel.factor + v * V::width).lanes * log2e;
    farthest[v] = least / factor[v]; // where hidden keys are put: their weights are lost in rounding
    for (int k = 0; k < 4; ++k) sums[v][k] = Native{};
  }
  for (int64_t start = panel.first / kBlock * kBlock; start < panel.last; start += kBlock) {
    const int64_t from = std::max(start, panel.first), to = std::min(start + kBlock, panel.last);
    const T* peaks = panel.peaks + start / kBlock * kGroups * rows;
    for (int64_t key = from; key < to; key += kGroup, peaks += rows) {
      if (!group_matters<T, vectors>(panel, peaks, threshold)) continue;
      const T* tile = panel.logits + (key - panel.first) * rows;
      const int count = static_cast<int>(std::min<int64_t>(kGroup, to - key));
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        Native part[4] = {};
        for (int n = 0; n < count; ++n) {
          const V gap{V::load(tile + n * rows + v * V::width).lanes - anchor[v]};
          const Native distance = larger(V{farthest[v]}, gap).lanes;
          const Native weight = power_of_two<T>(factor[v] * distance, coefficients);
          const Native first = weight * distance, second = first * distance;
          part[0] += weight;
          part[1] += first;
          part[2] += second;
          part[3] += second * distance;
        }
        for (int k = 0; k < 4; ++k) sums[v][k] += part[k];
      }
    }
  }
  for (int v = 0; v < vectors; ++v)
    for (int k = 0; k < 4; ++k) V{sums[v][k]}.store(moments.sums[k] + v * V::width);
}

// The same with the precision that a round of the solver needs: the first one only has to come close.
template <class T, int vectors> inline void gather_moments(const Panel<T>& panel, T threshold, bool rough, Moments<T>& moments) {
  if constexpr (sizeof(T) == 8)
    gather_moments<T, vectors>(panel, threshold, PowerOfTwo<T>::coefficients, moments);
  else if (rough)
    gather_moments<T, vectors>(panel, threshold, kRough, moments);
  else
    gather_moments<T, vectors>(panel, threshold, kFair, moments);
}

// Solves for t = log beta by Halley's method inside a bracket. With V the variance and K the third central moment of the logits,
// dH/dt = -beta^2 V and d2H/dt2 = -2 beta^2 V - beta^3 K. The first guess is the lower of two. H - target is right for a row whose
// competitors crowd evenly below its maximum. For n normally distributed logits, H = log n - beta^2 V / 2, so
// beta^2 = (log n - target) / (log n - H); the true beta is somewhat larger, since the tail is finite.
template <class T, int vectors> inline void meet_entropy_target(const Problem& problem, Panel<T>& panel, T threshold) {
  // Of the entropy. In double precision it is small enough for numerical differentiation.
  constexpr double tolerance = sizeof(T) == 8 ? 1e-12 : 2e-5;
  double guess[Panel<T>::capacity], low[Panel<T>::capacity], high[Panel<T>::capacity];
  bool searching[Panel<T>::capacity], limit_tried[Panel<T>::capacity];
  int remaining = 0;
  for (int r = 0; r < panel.rows; ++r) {
    const double* parameters = problem.parameters_of(panel.head[r]);
    const double excess = entropy_of(panel.mass[r], panel.moment[r]) - parameters[0];
    low[r] = 0;
    limit_tried[r] = false;
    high[r] = std::log(std::clamp(parameters[1], 1., 1e30));
    // Rows without keys are excluded; rows with NaN are, too, because the comparison is false.
    searching[r] = excess > 0 && panel.maximum[r] > -kInfinity<T> && high[r] > 0;
    guess[r] = 0;
    if (searching[r]) {
      const double whole = std::log(static_cast<double>(panel.count[r])) - parameters[0];
      const double normal = whole > excess ? 0.6 * std::log(whole / (whole - excess)) : excess;
      guess[r] = std::min({excess, normal, high[r]});
    }
    remaining += searching[r];
  }
  Moments<T> moments;
  for (int round = 0; remaining > 0 && round < 60; ++round) {
    // A settled row does not count when blocks are skipped.
    T anchors[Panel<T>::capacity];
    for (int r = 0; r < panel.rows; ++r) {
      anchors[r] = panel.anchor[r];
      panel.factor[r] = static_cast<T>(std::exp(guess[r]));
      if (!searching[r]) panel.anchor[r] = std::numeric_limits<T>::max() / 4;
    }
    const bool rough = round == 0 && sizeof(T) == 4;
    gather_moments<T, vectors>(panel, threshold, rough, moments);
    for (int r = 0; r < panel.rows; ++r) {
      panel.anchor[r] = anchors[r];
      if (!searching[r]) continue;
      const double target = problem.parameters_of(panel.head[r])[0];
      const double beta = std::exp(guess[r]);
      double sums[4];
      for (int k = 0; k < 4; ++k) sums[k] = moments.sums[k][r];
      const double sink = problem.counted_sink(panel.head[r]);
      // If the maximum is +inf, a sink has weight only if it is +inf, too.
      if (sink > -kInfinity<double> && (panel.maximum[r] < kInfinity<T> || sink == kInfinity<double>)) {
        const double distance = sink == kInfinity<double> ? 0 : sink - panel.anchor[r];
        double term = std::exp(beta * distance);
        for (int k = 0; k < 4; ++k, term *= distance) sums[k] += term;
      }
      const double mean = sums[1] / sums[0], square = sums[2] / sums[0], cube = sums[3] / sums[0];
      const double variance = std::max(square - mean * mean, 0.);
      const double skew = cube - 3 * mean * square + 2 * mean * mean * mean;
      const double excess = std::log(sums[0]) - beta * mean - target;
      if (!rough || std::abs(excess) > 1e-3) { // a rough entropy does not tell on which side of the solution it is
        (excess > 0 ? low : high)[r] = guess[r];
        limit_tried[r] |= excess <= 0 || guess[r] == high[r];
      }
      const double slope = -beta * beta * variance;
      const double bend = 2 * slope - beta * beta * beta * skew;
      const double newton = -excess / slope;
      const double damping = std::clamp(1 + 0.5 * newton * bend / slope, 0.5, 2.);
      const double step = newton / damping;
      double next = guess[r] + step;
      bool settled = !rough && (std::abs(excess) <= tolerance || high[r] - low[r] < 1e-7);
      if (settled) {
        next = guess[r];
      } else if (!(next > low[r] && next < high[r])) {
        // Beyond the limit, try the limit itself, once. Otherwise halve the bracket. A row of ties has no slope, so that its next
        // guess is NaN: no beta changes its entropy, and it belongs to the limit.
        next = !(next < high[r]) && !limit_tried[r] ? high[r] : 0.5 * (low[r] + high[r]);
      } else {
        // Halley's error is of the third order, and the third derivative is at most a few times the others. If the error is
        // negligible, this step is the last, and its result needs no check.
        const double error = 4 * (std::abs(slope) + std::abs(bend)) * std::abs(step * step * step);
        settled = error < 2 * tolerance && !rough;
      }
      guess[r] = next;
      if (settled) {
        searching[r] = false;
        --remaining;
      }
    }
  }
  for (int r = 0; r < panel.rows; ++r) {
    if (panel.maximum[r] == -kInfinity<T> || panel.invalid[r]) continue;
    // At an end of the bracket, return exactly the end: the gradient has to know that the row was left alone or hit the limit.
    const double limit = problem.parameters_of(panel.head[r])[1];
    const double beta = guess[r] <= 0 ? 1. : guess[r] >= std::log(std::clamp(limit, 1., 1e30)) ? limit : std::exp(guess[r]);
    panel.beta[r] = panel.factor[r] = static_cast<T>(std::clamp(beta, 1., std::max(limit, 1.)));
  }
}

} // namespace sharpmax::SHARPMAX_VARIANT
