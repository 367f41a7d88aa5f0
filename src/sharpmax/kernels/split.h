// Fewer panels than threads, as with 9 to 24 rows over one key head: the keys of a panel are cut into parts, and each thread takes
// some parts of each panel. The parts are merged in their order. A policy stands between the two passes, as in decoding.
#pragma once

#include "decode.h"

namespace sharpmax::SHARPMAX_VARIANT {

constexpr int64_t kLeastPart = 512; // keys

// How many parts the keys of a panel are cut into; 1 if there are panels enough. Solving for an entropy needs the whole row.
template <class T> inline int64_t parts_for(const Problem& problem) {
  const int64_t panels = Division<T>(problem, 1).tasks;
  if (panels == 0 || 2 * panels > problem.threads || problem.policy == Policy::entropy_target) return 1;
  const int64_t wanted = (problem.threads + panels - 1) / panels;
  return std::clamp<int64_t>(problem.keys / kLeastPart, 1, wanted);
}

template <class T> struct Split {
  const Problem& problem;
  const T* given_beta;
  const Results<T>& results;
  const int64_t parts;

  const Division<T> division{problem, 1};
  const bool attends = results.output.data != nullptr;
  const int64_t capacity = Panel<T>::capacity;
  const int64_t part_keys = ((problem.keys + parts - 1) / parts + kBlock - 1) / kBlock * kBlock;
  const int64_t groups = (problem.keys + kBlock - 1) / kBlock * kGroups;
  const T threshold = negligible<T>(problem.keys);

  Buffer<T> queries{division.tasks * problem.width * capacity};
  Buffer<T> outputs{division.tasks * parts * problem.value_width * capacity};
  Buffer<T> logits{division.tasks * problem.keys * capacity};
  Buffer<T> peaks{division.tasks * groups * capacity};
  std::vector<Panel<T>> panels = std::vector<Panel<T>>(division.tasks);
  std::vector<Panel<T>> pieces = std::vector<Panel<T>>(division.tasks * parts); // the panels, with the keys of one part each

  void run() {
    for (int64_t task = 0; task < division.tasks; ++task) open(task);
    run_tasks(problem, division.tasks * parts, work_of(problem), [&](const Take& take) {
      Buffer<T> scratch(kBlock * problem.width);
      std::unique_ptr<MaskTile<T>> mask(problem.masked ? new MaskTile<T> : nullptr);
      for (int64_t piece = take(); piece >= 0; piece = take()) {
        const Stretch at = division.locate(problem, piece / parts);
        first_pass(problem, &pieces[piece], 1, at.batch, at.key_head, true, mask.get(), scratch.get());
      }
    });
    for (int64_t task = 0; task < division.tasks; ++task) settle(task);
    if (!attends) return;
    run_tasks(problem, division.tasks * parts, work_of(problem), [&](const Take& take) {
      Buffer<T> weights(kBlock * capacity), scratch(kBlock * problem.value_width);
      Buffer<const T*> kept(kBlock + 1);
      for (int64_t piece = take(); piece >= 0; piece = take()) {
        const Stretch at = division.locate(problem, piece / parts);
        second_pass(problem, &pieces[piece], 1, at.batch, at.key_head, threshold, scratch.get(), weights.get(), kept.get());
      }
    });
    Buffer<T> line(problem.value_width);
    for (int64_t task = 0; task < division.tasks; ++task) write(task, line.get());
  }

 private:
  void open(int64_t task) {
    const auto [batch, key_head, first_head, begin, end] = division.locate(problem, task);
    Panel<T>& panel = panels[task];
    open_panel(problem, panel, first_head, begin, end);
    panel.query = queries.get() + task * problem.width * capacity;
    panel.logits = logits.get() + task * problem.keys * capacity;
    panel.peaks = peaks.get() + task * groups * capacity;
    Buffer<T> scratch(problem.width);
    pack_query(problem, panel, batch, scratch.get());
    for (int64_t part = 0; part < parts; ++part) {
      Panel<T>& piece = pieces[task * parts + part] = panel;
      piece.first = std::max(panel.first, part * part_keys);
      piece.last = std::min(panel.last, (part + 1) * part_keys);
      if (piece.last <= piece.first) piece.first = piece.last = 0;
      piece.logits = panel.logits + std::max<int64_t>(piece.first - panel.first, 0) * panel.stride();
      piece.output = outputs.get() + (task * parts + part) * problem.value_width * capacity;
      std::fill(piece.output, piece.output + problem.value_width * panel.stride(), T(0));
    }
  }

  // Merges the statistics of the parts, chooses beta and tells the parts.
  void settle(int64_t task) {
    Panel<T>& panel = panels[task];
    const int64_t batch = division.locate(problem, task).batch;
    for (int64_t part = 0; part < parts; ++part) {
      const Panel<T>& piece = pieces[task * parts + part];
      for (int r = 0; r < panel.rows; ++r) {
        ChunkStatistics<T> found;
        found.maximum = piece.maximum[r];
        found.mass = piece.mass[r];
        found.moment = piece.moment[r];
        found.count = piece.count[r];
        found.infinite = piece.infinite[r];
        found.invalid = piece.invalid[r] || std::isnan(piece.mass[r]);
        merge_chunk(panel, r, found);
      }
    }
    settle_statistics(problem, panel);
    write_statistics(problem, panel, batch, results);
    if (!attends) return;
    choose_beta(problem, panel, batch, given_beta);
    level_rows(panel);
    prepare_weights(panel);
    for (int64_t part = 0; part < parts; ++part) {
      Panel<T>& piece = pieces[task * parts + part];
      std::copy_n(panel.anchor, capacity, piece.anchor);
      std::copy_n(panel.factor, capacity, piece.factor);
    }
  }

  void write(int64_t task, T* line) {
    Panel<T>& panel = panels[task];
    const Stretch at = division.locate(problem, task);
    const int64_t stride = panel.stride();
    panel.output = pieces[task * parts].output;
    for (int64_t part = 0; part < parts; ++part) {
      const Panel<T>& piece = pieces[task * parts + part];
      for (int r = 0; r < panel.rows; ++r) panel.total[r] += piece.total[r];
      if (part)
        for (int64_t n = 0; n < problem.value_width * stride; ++n) panel.output[n] += piece.output[n];
    }
    write_output(
        problem, panel, at.batch, at.key_head, threshold, panel.logits - panel.first * stride, stride, 1, line, results, stride,
        1);
  }
};

} // namespace sharpmax::SHARPMAX_VARIANT
