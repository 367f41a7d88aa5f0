// Line charts as SVG: two axes, each linear or logarithmic, curves, bands and labels.

const SPACE = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made =
    name in { svg: 1, g: 1, path: 1, line: 1, text: 1, circle: 1, title: 1 }
      ? document.createElementNS(SPACE, name)
      : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function short(value) {
  if (value === Infinity) return "∞";
  if (value === 0) return "0";
  if (value >= 1e6) return value.toExponential(value >= 1e7 ? 0 : 1).replace("e+", "e");
  if (value >= 100) return Math.round(value).toLocaleString("en");
  if (value >= 0.001) return String(Number(value.toPrecision(3)));
  return value.toExponential(1).replace(".0", "").replace("-", "−");
}

export const percent = (weight) =>
  weight >= 0.9995 ? `${Number((100 * weight).toPrecision(5))}%`
    : weight >= 1e-5 ? `${Number((100 * weight).toPrecision(3))}%`
      : `${short(100 * weight)}%`;

export const whole = (value) => Math.round(value).toLocaleString("en");

// Numbers of items on an axis: 16, 1k, 64k, 1M.
export const items = (n) =>
  n >= 2 ** 20 ? `${n / 2 ** 20}M` : n >= 1024 ? `${n / 1024}k` : String(n);

const POWERS = ["⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"];
const power = (value) => {
  const exponent = Math.round(Math.log10(value));
  if (exponent >= -2 && exponent <= 3) return short(value);
  const digits = [...String(Math.abs(exponent))].map((digit) => POWERS[digit]).join("");
  return `10${exponent < 0 ? "⁻" : ""}${digits}`;
};

function decades(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first) / 6));
  const found = [];
  for (let k = last; k >= first; k -= step) found.push(10 ** k);
  return found;
}

function evenly(low, high) {
  const rough = (high - low) / 4 || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= rough);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(x);
  return found.map((x) => Number(x.toPrecision(12)));
}

function scale({ low, high, log }, from, to) {
  const map = log ? Math.log : (x) => x;
  const [a, b] = [map(low), map(high)];
  return (x) => from + ((map(x) - a) / (b - a || 1)) * (to - from);
}

// Widths of the charts, read before anything is written: each reading after that costs a layout.
const widths = new Map();
export function measure() {
  widths.clear();
  for (const place of document.querySelectorAll(".chart")) widths.set(place, place.clientWidth);
}

// Axes are kept while they stay the same: their texts cost more than the curves.
const drawn = new WeakMap();

// Draw a chart into a place on the page.
//
// `x` and `y` are {low, high, log, title, ticks, name}; curves are {points, colour, dash, chosen,
// label}; bands are {points: [x, low, high]}; marks are {x, y, colour}; lines cross the whole chart
// at an x or y.
export function draw(place, chart) {
  const width = Math.max(widths.get(place) ?? place.clientWidth, 240);
  const [ratio, least, most] = chart.shape ?? [0.62, 190, 300];
  const height = Math.round(Math.min(Math.max(width * ratio, least), most));
  const labelled = width > 560 && chart.curves.some((curve) => curve.label);
  const edge = { left: 48, right: labelled ? 128 : 14, top: 10, bottom: 36 };
  const { x, y } = chart;
  const across = scale(x, edge.left, width - edge.right);
  const up = scale(y, height - edge.bottom, edge.top);
  const inside = (value) => Math.min(Math.max(value, y.low), y.high);
  const key = JSON.stringify([width, height, labelled, x, y]);
  const before = drawn.get(place);
  const kept = before?.key === key;
  const front = element("g");
  const svg = kept ? before.svg
    : element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  svg.setAttribute("aria-label", chart.alt);
  if (kept) before.front.replaceWith(front);
  else drawAxes(svg, { chart, width, height, edge, across, up });

  const path = (points) =>
    points.map(([a, b], i) => `${i ? "L" : "M"}${across(a).toFixed(1)} ${up(inside(b)).toFixed(1)}`)
      .join("");
  for (const band of chart.bands ?? []) {
    const there = band.points.map(([a, low]) => [a, low]);
    const back = band.points.map(([a, , high]) => [a, high]).reverse();
    const fill = band.colour ? `fill: ${band.colour}` : null;
    front.append(element("path", {
      class: "band", d: `${path(there)}${path(back).replace("M", "L")}Z`, style: fill,
    }));
    if (band.outlined) {
      front.append(
        element("path", { class: "bound", d: path(there) }),
        element("path", { class: "bound", d: path(back) }),
      );
    }
  }
  for (const line of chart.lines ?? []) {
    const place = "x" in line
      ? { x1: across(line.x), x2: across(line.x), y1: edge.top, y2: height - edge.bottom }
      : { x1: edge.left, x2: width - edge.right, y1: up(line.y), y2: up(line.y) };
    front.append(element("line", { class: line.kind, ...place }));
  }
  for (const curve of chart.curves) {
    front.append(element("path", {
      class: `curve${curve.chosen ? " chosen" : ""}`,
      d: path(curve.points),
      style: `stroke: ${curve.colour}`,
      "stroke-dasharray": curve.dash ?? null,
    }));
    if (curve.dots) {
      for (const [a, b] of curve.points) {
        front.append(element("circle", {
          cx: across(a), cy: up(inside(b)), r: 3, style: `fill: ${curve.colour}`,
        }));
      }
    }
  }
  for (const mark of chart.marks ?? []) {
    front.append(element("circle", {
      cx: across(mark.x), cy: up(inside(mark.y)), r: mark.large ? 6 : 4,
      style: `fill: ${mark.colour}; stroke: var(--panel); stroke-width: 2`,
    }));
  }
  for (const note of chart.notes ?? []) {
    const { x: at, y: high, text, anchor = "start" } = note;
    front.append(element("text", {
      class: "halo", x: across(at) + (note.right ?? 0), y: up(inside(high)) + (note.down ?? 0),
      "text-anchor": anchor,
    }, text));
  }
  if (labelled) placeLabels(front, chart.curves, (v) => up(inside(v)), width - edge.right + 8, {
    top: edge.top, bottom: height - edge.bottom,
  });
  const named = labelled ? [] : chart.curves.filter((curve) => curve.label);
  const legend = element("div", { class: "legend" }, ...named.map((curve) =>
    element("span", {}, swatch(curve.colour, curve.dash), curve.label)));
  drawn.set(place, { key, svg, front });
  if (kept) {
    place.lastChild.replaceWith(legend);
    return;
  }
  svg.append(front);
  place.replaceChildren(svg, legend);
}

function drawAxes(svg, { chart: { x, y }, width, height, edge, across, up }) {
  const rows = y.ticks ?? (y.log ? decades(y.low, y.high) : evenly(y.low, y.high));
  for (const tick of rows) {
    const at = up(tick);
    svg.append(
      element("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: at, y2: at }),
      element("text", { x: edge.left - 6, y: at + 4, "text-anchor": "end" },
        (y.name ?? (y.log ? power : short))(tick)),
    );
  }
  const most = Math.max(2, Math.floor((width - edge.left - edge.right) / 52));
  const columns = x.ticks ?? (x.log ? decades(x.low, x.high) : evenly(x.low, x.high));
  const skip = Math.ceil(columns.length / most);
  columns.forEach((tick, index) => {
    if ((columns.length - 1 - index) % skip) return;
    const at = across(tick);
    svg.append(
      element("line", { class: "grid", x1: at, x2: at, y1: edge.top, y2: height - edge.bottom }),
      element("text", { x: at, y: height - edge.bottom + 16, "text-anchor": "middle" },
        (x.name ?? (x.log ? power : short))(tick)),
    );
  });
  const middle = (edge.left + width - edge.right) / 2;
  svg.append(element("text", { x: middle, y: height - 3, "text-anchor": "middle" }, x.title));
}

// A piece of a curve beside its name.
export function swatch(colour, dash = "") {
  const kind = dash.startsWith("2") ? "dotted" : dash ? "dashed" : "";
  return element("span", { class: `swatch ${kind}`, style: `color: ${colour}` });
}

// Write the names of curves beside their ends, moved apart where they would overlap.
function placeLabels(svg, curves, up, left, { top, bottom }) {
  const step = 15;
  const wanted = curves
    .filter((curve) => curve.label)
    .map((curve) => ({ curve, y: up(curve.points.at(-1)[1]) }))
    .sort((a, b) => a.y - b.y);
  let floor = top + 4;
  for (const each of wanted) {
    each.y = Math.max(each.y, floor);
    floor = each.y + step;
  }
  let ceiling = bottom + 2;
  for (const each of [...wanted].reverse()) {
    each.y = Math.min(each.y, ceiling);
    ceiling = each.y - step;
  }
  for (const { curve, y } of wanted) {
    svg.append(element("text", { class: "label", x: left, y: y + 4, style: `fill: ${curve.colour}` },
      curve.label));
  }
}
