// The heads of a diagnosed model: a map, the curves of a head, and the tokens of recorded rows.
import { draw, element, items, percent, short, whole } from "./charts.js";
import { POLICIES, bounds, makeRow, respond, temper } from "./mathematics.js";

const VERDICTS = ["dispersing", "growing", "flat", "sink", "local", "unknown"];
const COLOURS = {
  verdict: { name: "verdict" },
  slope: { name: "slope of the entropy", value: (head) => head.slope, low: 0, high: 1 },
  normalised: {
    name: "entropy / log n at the longest length", low: 0, high: 1,
    value: (head) => last(head, "entropy")?.[0] / Math.log(head.at.visible.at(-1)),
  },
  largest: {
    name: "largest weight at the longest length", value: (head) => last(head, "largest")?.[0],
    low: 0, high: 1,
  },
  first: {
    name: "weight of the first token and sinks", value: (head) => head.at.sinks.at(-1), low: 0,
    high: 1,
  },
};
const last = (head, figure) => head.at[figure].at(-1);

// Show the heads; return a function that shows the chosen head again with another rule.
export function showHeads(diagnosis, shapeRow) {
  const find = (id) => document.getElementById(id);
  const { heads, lengths } = diagnosis;
  let chosen = heads.find((head) => head.verdict === "dispersing") ?? heads[0];
  let rule = ["Identity", {}];
  find("heads").hidden = false;
  find("heads-title").textContent = `Heads of ${diagnosis.model}`;
  find("heads-about").textContent =
    `${whole(heads.length)} heads, one row per layer, measured at ${lengths.map(whole).join(", ")} ${diagnosis.unit}`
    + `${diagnosis.source ? ` of ${diagnosis.source}` : ""}. Choose a head to see its curves; the `
    + "arrow keys move over the map.";
  find("colour").append(...Object.entries(COLOURS).map(([key, { name }]) =>
    element("option", { value: key }, name)));

  const layers = [...new Set(heads.map(({ layer }) => layer))];
  const cells = new Map();
  const choose = (head, focus) => {
    cells.get(chosen).setAttribute("aria-selected", "false");
    cells.get(chosen).tabIndex = -1;
    chosen = head;
    cells.get(chosen).setAttribute("aria-selected", "true");
    cells.get(chosen).tabIndex = 0;
    if (focus) cells.get(chosen).focus();
    showHead(diagnosis, chosen, rule, shapeRow);
  };
  // On a phone the curves are below a map that fills the screen.
  const show = (head) => {
    choose(head);
    if (find("head").getBoundingClientRect().top > innerHeight - 100) find("head").scrollIntoView();
  };
  find("map").replaceChildren(...layers.map((layer) => element("div", { role: "row" },
    element("span", { class: "layer", role: "rowheader" }, String(layer)),
    ...heads.filter((head) => head.layer === layer).map((head) => {
      const cell = element("button", {
        type: "button", class: "cell", role: "gridcell", tabindex: head === chosen ? 0 : -1,
        "aria-selected": String(head === chosen), onclick: () => show(head),
      });
      cells.set(head, cell);
      return cell;
    }))));
  find("map").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (!(event.key in step)) return;
    event.preventDefault();
    const [down, right] = step[event.key];
    const layer = layers[layers.indexOf(chosen.layer) + down];
    const row = heads.filter((head) => head.layer === layer);
    const column = heads.filter((head) => head.layer === chosen.layer).indexOf(chosen) + right;
    if (row[column]) choose(row[column], true);
  });
  const paint = () => {
    const key = find("colour").value;
    const { value, low, high } = COLOURS[key];
    for (const [head, cell] of cells) {
      const share = value ? (value(head) - low) / (high - low) : 0;
      const known = Number.isFinite(share);
      const mixed = Math.round(100 * Math.min(Math.max(share, 0), 1));
      cell.style.background = !value ? `var(--${head.verdict})`
        : known ? `color-mix(in oklab, #0b3d63 ${mixed}%, #d9ecf8)` : "var(--unknown)";
      cell.textContent = !value ? head.verdict[0] : known ? value(head).toFixed(1).replace(/^0/, "") : "–";
      cell.classList.toggle("dark", Boolean(value) && known && mixed < 55);
      cell.dataset.verdict = value ? "" : head.verdict;
      const slope = head.slope === null ? "unknown" : head.slope.toFixed(2);
      cell.title = `layer ${head.layer}, head ${head.head}: ${head.verdict}, slope ${slope}`;
      cell.setAttribute("aria-label", cell.title);
    }
    find("legend").replaceChildren(...(value
      ? [element("span", {}, String(low), element("span", {
        class: "ramp", style: "background: linear-gradient(to right in oklab, #d9ecf8, #0b3d63)",
      }), String(high))]
      : VERDICTS.filter((verdict) => heads.some((head) => head.verdict === verdict))
        .map((verdict) => element("span", {},
          element("span", { class: "dot", style: `background: var(--${verdict})` }),
          `${verdict} (${heads.filter((head) => head.verdict === verdict).length})`))));
  };
  find("colour").addEventListener("change", paint);
  paint();
  return (name, parameters) => {
    rule = [name, parameters];
    showHead(diagnosis, chosen, rule, shapeRow);
  };
}

function showHead(diagnosis, head, [rule, parameters], shapeRow) {
  const place = document.getElementById("head");
  const { lengths, unit } = diagnosis;
  const slope = head.slope === null ? "" : `, slope ${head.slope.toFixed(2)}`;
  const title = element("h2", {}, `Layer ${head.layer}, head ${head.head}: ${head.verdict}${slope}`);
  const measured = lengths.map((n, k) => ({ n, k })).filter(({ k }) => head.at.entropy[k]);
  if (!measured.length) {
    place.replaceChildren(title, element("p", {}, "No row of this head could be measured."));
    return;
  }
  const figure = (name) => measured.map(({ k }) => [head.at.visible[k], ...head.at[name][k]]);
  const [entropies, weights] = [figure("entropy"), figure("largest")];
  const mean = (points) => points.map(([n, middle]) => [n, middle]);
  const band = (points) => points.map(([n, , low, high]) => [n, low, high]);
  const ends = entropies.map(([n]) => n);
  const x = {
    low: Math.min(...ends) / 1.05, high: Math.max(...ends) * 1.05, log: true, ticks: [...new Set(ends)],
    title: "visible keys per row (mean)", name: (n) => (n % 1024 ? whole(n) : items(n)),
  };
  const colour = `var(--${head.verdict})`;
  const [left, right] = [element("div", { class: "chart" }), element("div", { class: "chart" })];
  const figures = element("div", {}, element("h3", {}, `At ${whole(lengths.at(-1))} ${unit}`));
  const grid = element("div", { class: "head-grid" },
    element("div", {}, element("h3", {}, "Entropy, nats"), left),
    element("div", {}, element("h3", {}, "Largest weight"), right), figures);
  place.replaceChildren(title, grid);

  const at = measured.at(-1).k;
  const spread = head.at.spread[at];
  const [n, entropy] = entropies.at(-1);
  const row = likeHead(n, spread, entropy);
  const beta = POLICIES[rule].beta(parameters, {
    entropy, n, at: (value) => temper(makeRow(row), value),
  });
  const facts = {
    "entropy, nats": `${entropy.toFixed(2)} of ${Math.log(n).toFixed(2)}`,
    "largest weight": percent(weights.at(-1)[1]),
    "spread δ of the logits (median)": spread.toFixed(1),
    "weight of the first token and sinks": percent(head.at.sinks[at]),
    [`weight of the last ${diagnosis.tail} tokens`]: percent(head.at.tail[at]),
    [`β of “${POLICIES[rule].label}” at the mean entropy`]: short(beta),
  };
  figures.append(
    element("table", {}, ...Object.entries(facts).map(([name, value]) =>
      element("tr", {}, element("td", {}, name), element("td", {}, value)))),
    element("p", { class: "buttons" }, element("button", {
      type: "button",
      onclick: () => {
        shapeRow(row);
        scrollTo({ top: 0 });
      },
    }, "Shape the row like this head")));
  draw(left, {
    alt: `Entropy of the head against the number of keys: ${entropy.toFixed(2)} nats at the longest.`,
    x,
    y: { low: 0, high: Math.ceil(Math.log(Math.max(...ends))) },
    bands: [{ points: band(entropies), colour }],
    curves: [
      { points: ends.map((k) => [k, Math.log(k)]), colour: "var(--control)", dash: "2 3" },
      { points: mean(entropies), colour, chosen: true, dots: true },
    ],
    notes: [{ x: ends[0], y: Math.log(ends[0]), text: "log n", right: 4, down: -8 }],
  });
  const lemma = measured.map(({ k }) => {
    const { upper } = bounds(head.at.visible[k], head.at.spread[k]);
    return [head.at.visible[k], Math.min(upper, 1)];
  });
  draw(right, {
    alt: `Largest weight of the head against the number of keys, and the bound of Lemma 2.1.`,
    x,
    y: { low: 1e-4, high: 1, log: true },
    bands: [{ points: band(weights).map(([k, low, high]) => [k, low, high]), colour }],
    curves: [
      { points: lemma, colour: "var(--band)", dash: "6 4" },
      { points: mean(weights), colour, chosen: true, dots: true },
    ],
    notes: [{ x: ends[0], y: lemma[0][1], text: "bound of Lemma 2.1", right: 4, down: 16 }],
  });
  const examples = (diagnosis.examples ?? []).filter((each) =>
    each.layer === head.layer && each.head === head.head);
  if (examples.length) {
    place.append(
      element("h3", {}, `Tokens that it attends to: plain, and with “${POLICIES[rule].label}”`),
      element("p", { class: "soft" }, "Weights with a rule are interpolated, to within a percent."),
      element("div", { class: "examples" },
        ...examples.map((each) => showExample(each, diagnosis.betas, rule, parameters))));
  }
}

// A row with the length and spread of a head, and the crowding that gives it the head's entropy.
function likeHead(n, spread, entropy) {
  const row = {
    n: Math.max(4, Math.round(n)), spread: Number(Math.min(spread, 30).toFixed(2)), ties: 0, gap: 0.5,
  };
  let [low, high] = [Math.log(0.01), Math.log(4)];
  for (let step = 0; step < 30; step++) {
    const middle = (low + high) / 2;
    const reached = temper(makeRow({ ...row, crowding: Math.exp(middle) }), 1).entropy;
    if (reached < entropy) low = middle;
    else high = middle;
  }
  return { ...row, crowding: Number(Math.exp(low).toPrecision(3)) };
}

// Mass, entropy and variance of a recorded row at a beta.
//
// The file has the logarithm of the mass and its derivative at a few betas. Between them a cubic in
// log(beta) is within a percent; beyond the last, the recorded tokens have all the weight.
export function temperExample(example, betas, beta) {
  const gaps = example.keys.map(({ gap }) => gap);
  if (beta > betas.at(-1)) return temper({ gaps, counts: gaps.map(() => 1) }, beta);
  let k = 0;
  while (k < betas.length - 2 && beta > betas[k + 1]) k++;
  const width = Math.log(betas[k + 1] / betas[k]);
  const t = Math.max(Math.log(beta / betas[k]) / width, 0);
  const [a, b] = [example.log_mass[k], example.log_mass[k + 1]];
  const [p, q] = [k, k + 1].map((i) => betas[i] * example.mean_gap[i] * width);
  const [c, d] = [3 * (b - a) - 2 * p - q, 2 * (a - b) + p + q];
  const value = a + t * (p + t * (c + t * d));
  const first = (p + t * (2 * c + t * 3 * d)) / width;
  const second = (2 * c + 6 * t * d) / width ** 2;
  return {
    mass: Math.exp(value),
    entropy: value - first,
    variance: Math.max((second - first) / beta ** 2, 0),
  };
}

function showExample(example, betas, rule, parameters) {
  const at = (beta) => temperExample(example, betas, beta);
  const plain = at(1);
  const { beta, mass } = respond(rule, parameters, example.visible, at, plain);
  const weight = (gap, value, total) =>
    (value === Infinity ? Number(gap === 0) : Math.exp(value * gap)) / total;
  const lines = example.keys.map(({ text, position, gap }) => {
    const [before, after] = [weight(gap, 1, plain.mass), weight(gap, beta, mass)];
    const bar = (share) => element("i", { style: `width: ${100 * Math.min(share, 1)}%` });
    return element("tr", {},
      element("td", { class: "token", title: `position ${position}` }, readable(text, position)),
      element("td", {}, percent(before)), element("td", {}, percent(after)),
      element("td", { class: "bars" }, element("div", { class: "pair" }, bar(before), bar(after))));
  });
  return element("div", { class: "example" },
    element("div", { class: "soft" },
      `Row ${whole(example.position)}, query “${readable(example.text, example.position)}”, `
      + `${whole(example.visible)} keys, H = ${example.entropy.toFixed(2)}, β = ${short(beta)}`),
    element("table", {},
      element("thead", {}, element("tr", {}, ...["token", "plain", "rule", ""].map((name) =>
        element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...lines)));
}

const readable = (text, position) =>
  text === "" ? `#${position}` : text.replaceAll("\n", "⏎").replaceAll(" ", "␣");
