// The beta at which the entropy of a row is the one asked for, found on the logits of a panel, all its rows at once.
#pragma once

#include "cpu_panel.h"

namespace sharpmax {

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
        V zeroth = V::zero(), first = V::zero(), second = V::zero(), third = V::zero();
        for (int n = 0; n < count; ++n) {
          // How far away a hidden key is does not matter, only that its weight times a power of it is zero.
          const V distance = larger(V::splat(T(-1e9)), V::load(tile + n * rows + at) - anchor);
          const V weight = exp_nonpositive(factor * distance);
          const V once = weight * distance, twice = once * distance;
          zeroth += weight;
          first += once;
          second += twice;
          third += twice * distance;
        }
        (V::load(moments.sums[0] + at) + zeroth).store(moments.sums[0] + at);
        (V::load(moments.sums[1] + at) + first).store(moments.sums[1] + at);
        (V::load(moments.sums[2] + at) + second).store(moments.sums[2] + at);
        (V::load(moments.sums[3] + at) + third).store(moments.sums[3] + at);
      }
    }
  }
}

// Solves for t = log beta by Halley's method inside a bracket. With V the variance and K the third central moment of the logits:
// dH/dt = -beta^2 V, d2H/dt2 = -2 beta^2 V - beta^3 K. There are two first guesses, of which the lower is taken. H - target is what
// a row needs whose competitors crowd evenly below its maximum. And n logits with a normal distribution have
// H = log n - beta^2 V / 2, hence beta^2 = (log n - target) / (log n - H); in fact somewhat more, since the tail is finite.
template <class T, int vectors> inline void meet_entropy_target(const Problem& problem, Panel<T>& panel, T threshold) {
  // Of the entropy. In double precision somebody may differentiate numerically.
  constexpr double tolerance = sizeof(T) == 8 ? 1e-12 : 2e-5;
  double guess[Panel<T>::capacity], low[Panel<T>::capacity], high[Panel<T>::capacity];
  bool searching[Panel<T>::capacity], limit_tried[Panel<T>::capacity];
  int remaining = 0;
  for (int r = 0; r < panel.rows; ++r) {
    const double* parameters = problem.parameters + panel.head[r] * problem.parameter_stride;
    const double excess = entropy_of(panel.mass[r], panel.moment[r]) - parameters[0];
    low[r] = 0;
    limit_tried[r] = false;
    high[r] = std::log(std::clamp(parameters[1], 1., 1e30));
    // Searching also excludes rows without keys and, since the comparison is false, with NaN.
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
    // A row that is settled stays out of the reckoning of which blocks matter.
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
      const double target = problem.parameters[panel.head[r] * problem.parameter_stride];
      const double beta = std::exp(guess[r]);
      double sums[4];
      for (int k = 0; k < 4; ++k) sums[k] = moments.sums[k][r];
      const double sink = problem.has_sink() && problem.sink_counted ? problem.sink(panel.head[r]) : -kInfinity<double>;
      // Where the maximum is +inf, a sink has weight only if it is, too.
      if (sink > -kInfinity<double> && (panel.maximum[r] < kInfinity<T> || sink == kInfinity<double>)) {
        const double distance = sink == kInfinity<double> ? 0 : sink - panel.anchor[r], weight = std::exp(beta * distance);
        sums[0] += weight;
        sums[1] += weight * distance;
        sums[2] += weight * distance * distance;
        sums[3] += weight * distance * distance * distance;
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
        // Beyond the limit: try the limit itself, once. Else halve what is left.
        next = next >= high[r] && !limit_tried[r] ? high[r] : 0.5 * (low[r] + high[r]);
      } else {
        // Halley's error is of the third order, and the third derivative of the size of the others or a few times that. If the
        // error is negligible, the step is the last and needs no other look.
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
    // At an end, the end itself: whoever differentiates has to see that the row was left alone or hit the limit.
    const double limit = problem.parameters[panel.head[r] * problem.parameter_stride + 1];
    const double beta = guess[r] <= 0 ? 1. : guess[r] >= std::log(std::clamp(limit, 1., 1e30)) ? limit : std::exp(guess[r]);
    panel.beta[r] = panel.factor[r] = static_cast<T>(std::clamp(beta, 1., std::max(limit, 1.)));
  }
}

} // namespace sharpmax
