// What the rules make of the row, in numbers, charts and tables.
import { draw, element, items, percent, short, swatch, whole } from "./charts.js";
import { POLICIES, bounds, criticalLength, gapOfRank } from "./mathematics.js";
import { LENGTHS, LONGEST, SHORTEST, find, state } from "./settings.js";

const DASHES = { Hard: "2 4", Polynomial: "8 3", Monotone: "8 3 2 3", Constant: "5 3" };

export function writeNumbers(row, plain, { now, rule }, values) {
  const { label, highest, parameters } = POLICIES[rule];
  const before = 1 / plain.mass;
  const same = now.beta === 1;
  const base = `At ${whole(row.n)} items, plain softmax gives the largest logit ${percent(before)} `
    + "of the weight.";
  let then = ` ${label} gives it ${percent(now.largest)}, with β = ${short(now.beta)}.`;
  if (rule === "Identity") then = "";
  else if (same) then = ` ${label} leaves the row alone.`;
  if (highest && plain.entropy > highest) {
    then = ` ${label} gives no correction: the entropy is above ${highest} nats.`;
  } else if (rule === "EntropyTarget" && now.beta === values.limit) {
    then += " That is its limit: the target cannot be reached.";
  }
  find("sentence").textContent = base + then;

  const arrow = (from, to) => (same ? from : `${from} → ${to}`);
  const { lower, upper } = bounds(row.n, row.spread);
  const critical = criticalLength(row.spread, state.epsilon);
  const cards = [
    ["Entropy, nats", arrow(plain.entropy.toFixed(3), now.entropy.toFixed(3)),
      `of at most log n = ${Math.log(row.n).toFixed(3)}`],
    ["Inverse temperature β", short(now.beta),
      `temperature θ = ${now.beta === Infinity ? 0 : short(1 / now.beta)}`],
    ["Largest weight", arrow(percent(before), percent(now.largest)),
      `as if spread over ${short(Math.exp(now.entropy))} items`],
    ["Lemma 2.1, plain softmax", upper < 1 ? `at most ${percent(upper)}` : "at most 100%",
      `at least ${percent(lower)}; below ε from n = `
      + `${critical < 1e9 ? whole(critical) : short(critical)} at the latest`],
  ];
  find("cards").replaceChildren(...cards.map(([name, value, note]) =>
    element("div", {}, element("dt", {}, name),
      element("dd", {}, value, element("small", {}, note)))));

  const written = Object.keys(parameters).map((name) => {
    const value = values[name];
    const text = Array.isArray(value) ? `(${value.join(", ")}${value.length === 1 ? "," : ""})`
      : value === null ? "None" : typeof value === "string" ? `"${value}"` : value;
    return `${name}=${text}`;
  });
  find("python").replaceChildren(
    "policy = sharpmax.policies.", element("wbr"), `${rule}(${written.join(", ")})`,
  );
}

const lengthAxis = {
  low: SHORTEST, high: LONGEST, log: true, title: "number of items n", name: items,
  ticks: Array.from({ length: 10 }, (_, k) => 4 ** (k + 1)),
};
const colour = (rule) => `var(--${rule})`;
const visible = (rules) => rules.filter(({ rule }) => state.shown.has(rule));
const curves = (rules, values) => {
  // The chosen one last, above the others.
  const ordered = [...visible(rules)].sort((a, b) =>
    (a.rule === state.rule) - (b.rule === state.rule));
  return ordered.map(({ rule, answers }) => ({
    points: LENGTHS.map((n, k) => [n, values(answers[k])]),
    colour: colour(rule), dash: DASHES[rule], chosen: rule === state.rule,
    label: POLICIES[rule].label,
  }));
};

export function drawLargest(row, rules) {
  const low = 1e-7;
  const lemma = LENGTHS.map((n) => {
    // Relative to the spread of a row of this length, which can be too short for a background.
    const { lower, upper } = bounds(n, n > state.row.ties + 1 ? state.row.spread : row.spread);
    return [n, Math.max(lower, low), Math.min(upper, 1)];
  });
  const marks = visible(rules).filter(({ stop }) => stop !== null && stop > SHORTEST)
    .map(({ rule, stop }) => ({ x: stop, y: state.epsilon, colour: colour(rule) }));
  const now = visible(rules).map(({ rule, now: answer }) => ({
    x: row.n, y: answer.largest, colour: colour(rule), large: rule === state.rule,
  }));
  draw(find("chart-largest"), {
    alt: find("sentence").textContent,
    shape: [0.5, 250, 400],
    x: lengthAxis,
    y: { low, high: 1, log: true },
    bands: [{ points: lemma, outlined: true }],
    lines: [{ x: row.n, kind: "now" }, { y: state.epsilon, kind: "threshold" }],
    curves: curves(rules, (answer) => answer.largest),
    marks: [...marks, ...now],
    notes: [{
      x: LONGEST, y: state.epsilon, text: `ε = ${short(state.epsilon)}`, right: -6, down: -5,
      anchor: "end",
    }],
  });
  find("caption-largest").textContent =
    `Blue band: the two bounds of Lemma 2.1 for plain softmax, (1/n) exp(±δ), δ = `
    + `${short(state.row.spread)}. Red line: the threshold ε; a dot on it marks where a rule falls `
    + "below. Dotted line: the present n.";
}

export function writeRules(rules) {
  const line = ({ rule, now, stop }) => {
    const { label } = POLICIES[rule];
    const end = stop === null ? "beyond 1M" : stop <= SHORTEST ? "from the start"
      : `n = ${whole(stop)}`;
    return element("tr", { class: rule === state.rule ? "chosen" : null },
      element("td", {}, element("div", { class: "rule" },
        element("input", {
          type: "checkbox", "aria-label": `Show ${label} in the charts`,
          checked: state.shown.has(rule) ? "" : null, "data-rule": rule,
        }),
        swatch(colour(rule), DASHES[rule]),
        element("button", { type: "button", "data-choose": rule,
          "aria-pressed": String(rule === state.rule) }, label))),
      element("td", { class: "spare" }, short(now.beta)),
      element("td", { class: "optional" }, now.entropy.toFixed(2)),
      element("td", {}, percent(now.largest)),
      element("td", {}, end));
  };
  const focused = document.activeElement?.dataset ?? {};
  find("rules").replaceChildren(
    element("thead", {}, element("tr", {},
      ...["rule", "β", "entropy", "largest weight", "falls below ε at"].map((name, column) =>
        element("th", { scope: "col", class: ["", "spare", "optional", "", ""][column] }, name)))),
    element("tbody", {}, ...rules.map(line)));
  // The table is new: give the focus back to the same control.
  const again = focused.rule ? `[data-rule="${focused.rule}"]`
    : focused.choose ? `[data-choose="${focused.choose}"]` : null;
  if (again) find("rules").querySelector(again)?.focus();
}

export function writeShares(row, plain, now) {
  const part = (beta, mass) => {
    const top = 1 / mass;
    const near = beta === Infinity ? (row.near === 0 ? row.competitors / mass : 0)
      : (row.competitors * Math.exp(-beta * row.near)) / mass;
    return [top, near, Math.max(1 - top - near, 0)];
  };
  const names = ["Largest logit", "Near ties", "Background"];
  const colours = ["var(--accent)", "var(--growing)", "var(--control)"];
  const parts = [part(1, plain.mass), part(now.beta, now.mass)];
  const shown = [0, ...(row.competitors ? [1] : []), 2];
  const bar = (title, shares) => element("div", { class: "share" },
    element("div", { class: "name" }, title),
    element("div", { class: "bar" }, ...shown.map((k) => element("span", {
      style: `width: ${100 * shares[k]}%; background: ${colours[k]}`,
    }))));
  find("shares").replaceChildren(
    bar("Plain softmax", parts[0]), bar(POLICIES[state.rule].label, parts[1]),
    element("div", { class: "key" },
      element("span"), element("span"),
      element("span", { class: "head" }, "plain"), element("span", { class: "head" }, "rule"),
      ...shown.flatMap((k) => [
        element("span", { class: "dot", style: `background: ${colours[k]}` }),
        element("span", {}, names[k]),
        element("span", { class: "number" }, percent(parts[0][k])),
        element("span", { class: "number" }, percent(parts[1][k])),
      ])));
}

export function drawDetails(row, plain, rules, { now }) {
  const ranks = [];
  for (let rank = 1; rank < row.n; rank = Math.max(rank + 1, Math.round(rank * 1.12))) {
    ranks.push(rank);
  }
  ranks.push(row.n);
  const floor = 1e-9;
  const weight = (beta, mass) => (rank) => {
    const gap = gapOfRank(row, rank);
    const value = beta === Infinity ? (gap === 0 ? 1 : 0) : Math.exp(beta * gap);
    return [rank, Math.max(value / mass, floor)];
  };
  const both = [
    { rule: "Identity", beta: 1, mass: plain.mass },
    { rule: state.rule, beta: now.beta, mass: now.mass },
  ];
  draw(find("chart-weights"), {
    alt: "Weights of the logits from the largest to the smallest, plain and with the rule.",
    x: { low: 1, high: row.n, log: true, title: "rank of the logit" },
    y: { low: floor, high: 1, log: true },
    curves: both.map(({ rule, beta, mass }) => ({
      points: ranks.map(weight(beta, mass)), colour: colour(rule), chosen: rule === state.rule,
      dash: DASHES[rule],
    })),
  });
  draw(find("chart-entropy"), {
    alt: "Entropy against the number of items, of the rules that are shown.",
    x: lengthAxis,
    y: { low: 0, high: 14 },
    lines: [{ x: row.n, kind: "now" }],
    curves: [
      { points: LENGTHS.map((n) => [n, Math.log(n)]), colour: "var(--control)", dash: "2 3" },
      ...curves(rules, (answer) => answer.entropy).map((curve) => ({ ...curve, label: null })),
    ],
    notes: [{ x: 1024, y: Math.log(1024), text: "log n", anchor: "end", right: -4, down: -6 }],
  });
  const betas = visible(rules).flatMap(({ answers }) => answers.map(({ beta }) => beta));
  const most = Math.max(10, ...betas.filter(Number.isFinite));
  const least = Math.min(1, ...betas);
  draw(find("chart-beta"), {
    alt: "Inverse temperature against the number of items, of the rules that are shown.",
    x: lengthAxis,
    y: { low: least, high: 10 ** Math.ceil(Math.log10(most)), log: true },
    lines: [{ x: row.n, kind: "now" }],
    curves: curves(rules, ({ beta }) => beta).map((curve) => ({ ...curve, label: null })),
  });
}
