// The page: its controls, and what happens when one of them changes.
import { element, measure, short, whole } from "./charts.js";
import { showHeads } from "./heads.js";
import { POLICIES, firstBelow, makeRow, respond, temper } from "./mathematics.js";
import { drawDetails, drawLargest, writeNumbers, writeRules, writeShares } from "./results.js";
import {
  EPSILON, LENGTHS, PRESETS, ROW, find, parametersOf, readAddress, state, writeAddress,
} from "./settings.js";

const setters = {}; // of the controls of the row and the threshold, by name

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
let settled = 0;
function schedule() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    update(onScreen);
    clearTimeout(settled);
    settled = setTimeout(update, 250);
  });
}

// The sections that are on the screen. While a slider moves, only these follow.
const onScreen = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) onScreen.add(target.className);
    else onScreen.delete(target.className);
  }
});
const EVERYWHERE = new Set(["result", "rules", "more", "heads"]);

// Compute and draw what the sections show.
function update(sections = EVERYWHERE) {
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
    if (!values || !(sections.has("rules") || state.shown.has(rule))) return [];
    return [{ rule, now: respond(rule, values, row.n, at, plain), ...sweep(rule, values) }];
  });
  const active = rules.find(({ rule }) => rule === state.rule);
  const computed = performance.now();
  measure();
  writeNumbers(row, plain, active, chosen.values);
  if (sections.has("result")) drawLargest(row, rules);
  if (sections.has("rules")) writeRules(rules);
  if (sections.has("more")) {
    writeShares(row, plain, active.now);
    drawDetails(row, plain, rules, active);
  }
  if (sections.has("heads")) window.refreshHead?.(state.rule, chosen.values);
  writeAddress();
  find("time").textContent =
    `Updated in ${(performance.now() - begin).toFixed(1)} ms, of which `
    + `${(computed - begin).toFixed(1)} ms to compute.`;
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
  for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
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
