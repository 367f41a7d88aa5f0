// The settings of the page: what they may be, what they are, and the address that holds them.
import { POLICIES } from "./mathematics.js";

export const find = (id) => document.getElementById(id);
export const SHORTEST = 4;
export const LONGEST = 1048576;
export const LENGTHS = Array.from(
  { length: 37 }, (_, k) => Math.round(SHORTEST * 2 ** (k / 2)),
);

// Settings of the row. A slider moves along `to`, a function of its position.
export const ROW = {
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
export const EPSILON = {
  label: "Threshold ε", hint: "A rule works while the largest weight is at least ε.", start: 0.1,
  low: 0.001, high: 0.9, log: true,
};
export const PRESETS = {
  "Even spread": { spread: 5, crowding: 1, ties: 0 },
  "One winner": { spread: 8, crowding: 0.01, ties: 0 },
  "Near ties": { spread: 10, crowding: 0.5, ties: 8, gap: 0.3 },
  "Crowded top": { spread: 10, crowding: 3, ties: 0 },
  "Mean head of Gemma 2B": { spread: 5.69, crowding: 1, ties: 0 },
};

export const state = {
  rule: "Exponential",
  shown: new Set(["Identity", "Paper", "Exponential", "EntropyTarget", "LogLength"]),
  epsilon: EPSILON.start,
  row: Object.fromEntries(Object.entries(ROW).map(([name, { start }]) => [name, start])),
  raw: Object.fromEntries(Object.entries(POLICIES).map(([rule, { parameters }]) => [
    rule, Object.fromEntries(Object.entries(parameters).map(([name, { start }]) => [name, start])),
  ])),
};

// Parameters of a rule as numbers, or the reason why they are refused.
export function parametersOf(rule) {
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

// The address holds the settings, so that a link shows the same.
export function readAddress() {
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

// Browsers limit how often it may change, and each change takes time: once after the last of many.
let soon = 0;
export function writeAddress() {
  clearTimeout(soon);
  soon = setTimeout(writeAddressNow, 250);
}

function writeAddressNow() {
  const values = new URLSearchParams({
    ...state.row, epsilon: state.epsilon, rule: state.rule,
    ...Object.fromEntries(Object.entries(state.raw[state.rule])
      .map(([name, value]) => [name, value ?? ""])),
    shown: [...state.shown].join(" "),
  });
  try {
    history.replaceState(null, "", `#${values}`);
  } catch { /* Some browsers refuse it for files: the page works without. */ }
}
