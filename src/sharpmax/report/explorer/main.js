// The page: settings, what they make of a row, charts and tables.
import { draw, element, items, percent, short, whole } from "./charts.js";
import { showHeads } from "./heads.js";
import {
  POLICIES, bounds, criticalLength, firstBelow, gapOfRank, makeRow, respond, temper,
} from "./mathematics.js";

const find = (id) => document.getElementById(id);
const SHORTEST = 4;
const LONGEST = 1048576;
const LENGTHS = Array.from({ length: 37 }, (_, k) => Math.round(SHORTEST * 2 ** (k / 2)));
const DASHES = { Hard: "2 4", Polynomial: "8 3", Monotone: "8 3 2 3", Constant: "5 3" };

// Settings of the row. A slider moves along `to`, a function of its position.
const ROW = {
  n: {
    label: "Items n", hint: "From 4 to 1,048,576.", start: 16384, low: SHORTEST, high: LONGEST,
    whole: true, log: true,
  },
  spread: {
    label: "Spread δ", hint: "Largest minus smallest logit.", start: 5, low: 0, high: 30,
    step: 0.1,
  },
  crowding: {
    label: "Crowding", hint: "1: competitors evenly spread. Above: more of them near the top. "
      + "Below: most at the bottom.", start: 1, low: 0.01, high: 4, log: true,
  },
  ties: {
    label: "Near ties", hint: "Extra competitors close to the largest logit.", start: 0, low: 0,
    high: 64, step: 1, whole: true,
  },
  gap: {
    label: "Gap of the near ties", hint: "Below the largest logit. 0: they tie with it.",
    start: 0.5, low: 0, high: 5, step: 0.05,
  },
};
const EPSILON = {
  label: "Threshold ε", hint: "A rule works while the largest weight is at least ε.", start: 0.1,
  low: 0.001, high: 0.9, log: true,
};
const PRESETS = {
  "Even spread": { spread: 5, crowding: 1, ties: 0 },
  "One winner": { spread: 8, crowding: 0.01, ties: 0 },
  "Near ties": { spread: 10, crowding: 0.5, ties: 8, gap: 0.3 },
  "Crowded top": { spread: 10, crowding: 3, ties: 0 },
  "Mean head of Gemma 2B": { spread: 5.69, crowding: 1, ties: 0 },
};

const state = {
  rule: "Exponential",
  shown: new Set(["Identity", "Paper", "Exponential", "EntropyTarget", "LogLength"]),
  epsilon: EPSILON.start,
  row: Object.fromEntries(Object.entries(ROW).map(([name, { start }]) => [name, start])),
  raw: Object.fromEntries(Object.entries(POLICIES).map(([rule, { parameters }]) => [
    rule, Object.fromEntries(Object.entries(parameters).map(([name, { start }]) => [name, start])),
  ])),
};
const setters = {}; // of the controls of the row and the threshold, by name

// Parameters of a rule as numbers, or the reason why they are refused.
function parametersOf(rule) {
  const values = {};
  for (const [name, rules] of Object.entries(POLICIES[rule].parameters)) {
    const raw = state.raw[rule][name];
    values[name] = rules.choices ? raw : rules.parse(raw);
    if (!(rules.choices ? rules.choices.includes(raw) : rules.valid(values[name]))) {
      return { wrong: name, message: `${name}: expected ${rules.expected}, got “${raw}”` };
    }
  }
  const message = POLICIES[rule].check?.(values);
  return message ? { wrong: "", message } : { values };
}

// A label with a slider and a field, which follow each other.
function control(id, { label, hint, low, high, step, log, whole: integer }, value, change) {
  const position = (x) => (log ? Math.log2(Math.max(x, low)) : x);
  const rounded = (x) => (integer ? Math.round(x) : Number(x.toPrecision(log ? 3 : 6)));
  const field = element("input", { class: "value", id, inputmode: "decimal", autocomplete: "off" });
  const slider = element("input", {
    type: "range", min: position(low), max: position(high), step: log ? 0.01 : step,
    "aria-label": label,
  });
  const set = (x, typing = false) => {
    slider.value = position(x);
    slider.setAttribute("aria-valuetext", short(x));
    if (!typing) field.value = integer ? whole(x) : String(x);
    field.removeAttribute("aria-invalid");
  };
  slider.addEventListener("input", () => {
    const x = Number(slider.value);
    const next = Math.min(Math.max(rounded(log ? 2 ** x : x), low), high);
    set(next);
    change(next);
  });
  field.addEventListener("input", () => {
    const x = Number(field.value.replaceAll(",", ""));
    const accepted = field.value.trim() !== "" && x >= low && x <= high;
    if (!accepted) return field.setAttribute("aria-invalid", "true");
    set(integer ? Math.round(x) : x, true);
    return change(integer ? Math.round(x) : x);
  });
  set(value);
  setters[id] = set;
  return element("div", { class: "control" },
    element("div", { class: "top" }, element("label", { for: id }, label), field),
    slider,
    ...(hint ? [element("span", { class: "hint" }, hint)] : []));
}

function buildControls() {
  find("row-controls").append(...Object.entries(ROW).map(([name, about]) =>
    control(`row-${name}`, about, state.row[name], (value) => {
      state.row[name] = value;
      schedule();
    })));
  find("threshold-control").append(control("epsilon", EPSILON, state.epsilon, (value) => {
    state.epsilon = value;
    schedule();
  }));
  find("presets").append(...Object.entries(PRESETS).map(([name, row]) =>
    element("button", { type: "button", onclick: () => shapeRow(row) }, name)));
  find("rule").append(...Object.entries(POLICIES).map(([rule, { label }]) =>
    element("option", { value: rule }, label)));
  find("rule").addEventListener("change", () => chooseRule(find("rule").value));
  find("copy").addEventListener("click", async () => {
    await copyText(find("python").textContent);
    find("copy").textContent = "Copied";
    setTimeout(() => { find("copy").textContent = "Copy"; }, 1500);
  });
  find("theme").addEventListener("click", () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that are opened as files may not use the clipboard: select the text instead.
    const range = document.createRange();
    range.selectNodeContents(find("python"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand("copy");
  }
}

function shapeRow(row) {
  for (const [name, value] of Object.entries(row)) {
    state.row[name] = value;
    setters[`row-${name}`](value);
  }
  schedule();
}

function chooseRule(rule) {
  state.rule = rule;
  state.shown.add(rule);
  buildRule();
  schedule();
}

// The fields of the chosen rule.
function buildRule() {
  const { rule } = state;
  const { formula, about, parameters } = POLICIES[rule];
  find("rule").value = rule;
  find("formula").textContent = formula;
  find("about").textContent = about;
  find("rule-controls").replaceChildren(...Object.entries(parameters).map(([name, settings]) => {
    const raw = state.raw[rule];
    const label = name + (settings.unit ? `, ${settings.unit}` : "");
    const id = `parameter-${name}`;
    const change = (value) => {
      raw[name] = value;
      schedule();
    };
    if (settings.low !== undefined) {
      return control(id, { ...settings, label }, Number(raw[name]), change);
    }
    const field = settings.choices
      ? element("select", { id }, ...settings.choices.map((choice) => element("option", {}, choice)))
      : element("input", { class: "long", id, autocomplete: "off" });
    field.value = raw[name] ?? "";
    field.addEventListener("input", () => change(field.value));
    return element("div", { class: "control" }, element("label", { for: id }, label), field);
  }));
}

// What the rules make of the shape at every length. Kept until the shape or a parameter changes.
const kept = new Map();
function sweep(rule, parameters) {
  const { n: _, ...shape } = state.row;
  const place = JSON.stringify(shape);
  if (kept.get("shape") !== place) {
    kept.clear();
    kept.set("shape", place);
    kept.set("rows", LENGTHS.map((n) => {
      const row = makeRow({ ...shape, n });
      return { row, plain: temper(row, 1) };
    }));
  }
  const key = JSON.stringify([parameters, state.epsilon]);
  const before = kept.get(rule);
  if (before?.key === key) return before;
  const answer = ({ row, plain }) =>
    respond(rule, parameters, row.n, (beta) => temper(row, beta), plain);
  const answers = kept.get("rows").map(answer);
  const largest = answers.map((each) => each.largest);
  const stop = firstBelow(LENGTHS, largest, state.epsilon, (n) => {
    const row = makeRow({ ...shape, n });
    return answer({ row, plain: temper(row, 1) }).largest;
  });
  const found = { key, answers, largest, stop };
  kept.set(rule, found);
  return found;
}

let waiting = false;
function schedule() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    update();
  });
}

// Compute everything and draw it.
function update() {
  const begin = performance.now();
  const chosen = parametersOf(state.rule);
  find("error").textContent = chosen.message ?? "";
  for (const field of document.querySelectorAll("#rule-controls input")) {
    const wrong = chosen.wrong !== undefined && field.id === `parameter-${chosen.wrong}`;
    if (field.classList.contains("long")) field.setAttribute("aria-invalid", String(wrong));
  }
  if (chosen.message) return;
  const row = makeRow(state.row);
  const at = (beta) => temper(row, beta);
  const plain = at(1);
  const rules = Object.keys(POLICIES).flatMap((rule) => {
    const { values } = parametersOf(rule);
    if (!values) return [];
    return [{ rule, now: respond(rule, values, row.n, at, plain), ...sweep(rule, values) }];
  });
  const active = rules.find(({ rule }) => rule === state.rule);
  const computed = performance.now();
  writeNumbers(row, plain, active, chosen.values);
  drawLargest(row, rules);
  writeRules(rules);
  writeShares(row, plain, active.now);
  drawDetails(row, plain, rules, active);
  window.refreshHead?.(state.rule, chosen.values);
  writeAddress();
  find("time").textContent =
    `Updated in ${(performance.now() - begin).toFixed(1)} ms, of which `
    + `${(computed - begin).toFixed(1)} ms to compute.`;
}

function writeNumbers(row, plain, { now, rule }, values) {
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
  find("python").textContent = `policy = sharpmax.policies.${rule}(${written.join(", ")})`;
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

function drawLargest(row, rules) {
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
    height: Math.round(Math.min(Math.max(find("chart-largest").clientWidth * 0.5, 250), 400)),
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

function writeRules(rules) {
  const line = ({ rule, now, stop }) => {
    const { label } = POLICIES[rule];
    const end = stop === null ? "beyond 1M" : stop <= SHORTEST ? "from the start"
      : `n = ${whole(stop)}`;
    return element("tr", { class: rule === state.rule ? "chosen" : null },
      element("td", {},
        element("input", {
          type: "checkbox", "aria-label": `Show ${label} in the charts`,
          checked: state.shown.has(rule) ? "" : null, "data-rule": rule,
        }),
        element("span", {
          class: `swatch ${DASHES[rule] ? (rule === "Hard" ? "dotted" : "dashed") : ""}`,
          style: `color: ${colour(rule)}`,
        }),
        element("button", { type: "button", "data-choose": rule,
          "aria-pressed": String(rule === state.rule) }, label)),
      element("td", {}, short(now.beta)),
      element("td", { class: "optional" }, now.entropy.toFixed(2)),
      element("td", {}, percent(now.largest)),
      element("td", {}, end));
  };
  const focused = document.activeElement?.dataset ?? {};
  find("rules").replaceChildren(
    element("thead", {}, element("tr", {},
      ...["rule", "β", "entropy", "largest weight", "falls below ε at"].map((name, column) =>
        element("th", { scope: "col", class: column === 2 ? "optional" : null }, name)))),
    element("tbody", {}, ...rules.map(line)));
  // The table is new: give the focus back to the same control.
  const again = focused.rule ? `[data-rule="${focused.rule}"]`
    : focused.choose ? `[data-choose="${focused.choose}"]` : null;
  if (again) find("rules").querySelector(again)?.focus();
}

function writeShares(row, plain, now) {
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

function drawDetails(row, plain, rules, { now }) {
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

// The address holds the settings, so that a link shows the same.
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, { low, high, whole: integer }] of Object.entries(ROW)) {
    const value = Number(given.get(name));
    if (given.has(name) && value >= low && value <= high) {
      state.row[name] = integer ? Math.round(value) : value;
    }
  }
  const epsilon = Number(given.get("epsilon"));
  if (epsilon >= EPSILON.low && epsilon <= EPSILON.high) state.epsilon = epsilon;
  if (given.get("rule") in POLICIES) state.rule = given.get("rule");
  for (const name of Object.keys(POLICIES[state.rule].parameters)) {
    if (given.has(name)) state.raw[state.rule][name] = given.get(name);
  }
  if (given.has("shown")) {
    state.shown = new Set(given.get("shown").split(" ").filter((rule) => rule in POLICIES));
  }
  state.shown.add(state.rule);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = given.get("theme") ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = theme === "dark" ? "dark" : "light";
}

function writeAddress() {
  const values = new URLSearchParams({
    ...state.row, epsilon: state.epsilon, rule: state.rule,
    ...Object.fromEntries(Object.entries(state.raw[state.rule])
      .map(([name, value]) => [name, value ?? ""])),
    shown: [...state.shown].join(" "),
  });
  try {
    history.replaceState(null, "", `#${values}`);
  } catch { /* Some browsers limit how often, or refuse it for files: the page works without. */ }
}

function start() {
  readAddress();
  buildControls();
  buildRule();
  find("rules").addEventListener("click", ({ target }) => {
    if (target.dataset.choose) chooseRule(target.dataset.choose);
    else if (target.dataset.rule) {
      if (target.checked) state.shown.add(target.dataset.rule);
      else state.shown.delete(target.dataset.rule);
      schedule();
    }
  });
  addEventListener("resize", schedule);
  addEventListener("message", ({ data }) => {
    // The site that embeds this page tells it which theme it has.
    if (data === "light" || data === "dark") document.documentElement.dataset.theme = data;
  });
  if (parent !== window) {
    new ResizeObserver(() => parent.postMessage(document.body.offsetHeight, "*"))
      .observe(document.body);
  }
  const diagnosis = JSON.parse(find("data").textContent);
  if (diagnosis) window.refreshHead = showHeads(diagnosis, shapeRow);
  update();
}

start();
