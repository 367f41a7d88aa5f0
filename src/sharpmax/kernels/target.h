// Solves for the beta at which the entropy of a row is the target, for all rows of a panel at once.
#pragma once

#include "panel.h"

namespace sharpmax::SHARPMAX_VARIANT {

// Moments of the logits' distances to the maximum under the weights: sum of w, w d, w d^2, w d^3.
template <class T> struct Moments {
  alignas(64) T sums[4][Panel<T>::capacity];
};

template <class T, int vectors> inline void gather_moments(const Panel<T>& panel, T threshold, Moments<T>& moments) {
  using V = Vector<T>;
  constexpr int rows = vectors * V::width;
  std::memset(moments.sums, 0, sizeof(moments.sums));
  for (int64_t start = panel.first / kBlock * kBlock; start < panel.last; start += kBlock) {
    const int64_t from = std::max(start, panel.first), to = std::min(start + kBlock, panel.last);
    const T* peaks = panel.peaks + start / kBlock * kGroups * rows;
    for (int64_t key = from; key < to; key += kGroup, peaks += rows) {
      if (!group_matters<T, vectors>(panel, peaks, threshold)) continue;
      const T* tile = panel.logits + (key - panel.first) * rows;
      const int count = static_cast<int>(std::min<int64_t>(kGroup, to - key));
      for (int v = 0; v < vectors; ++v) {
        const int at = v * V::width;
        const V anchor = V::load(panel.anchor + at), factor = V::load(panel.factor + at);
        V part[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
        for (int n = 0; n < count; ++n) {
          // The distance of a hidden key does not matter, if its weight times a power of the distance is zero.
          const V distance = larger(V::splat(T(-1e9)), V::load(tile + n * rows + at) - anchor);
          V term = exp_nonpositive(factor * distance);
#pragma GCC unroll 4
          for (int k = 0; k < 4; ++k, term = term * distance) part[k] += term;
        }
        for (int k = 0; k < 4; ++k) (V::load(moments.sums[k] + at) + part[k]).store(moments.sums[k] + at);
      }
    }
  }
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
    gather_moments<T, vectors>(panel, threshold, moments);
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
      (excess > 0 ? low : high)[r] = guess[r];
      limit_tried[r] |= excess <= 0 || guess[r] == high[r];
      const double slope = -beta * beta * variance;
      const double bend = 2 * slope - beta * beta * beta * skew;
      const double newton = -excess / slope;
      const double damping = std::clamp(1 + 0.5 * newton * bend / slope, 0.5, 2.);
      const double step = newton / damping;
      double next = guess[r] + step;
      bool settled = std::abs(excess) <= tolerance || high[r] - low[r] < 1e-7;
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
        settled = error < 2 * tolerance;
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
