// A row of logits, its statistics and the policies, with the formulas of the library.
//
// A row has n logits, relative to the largest: one at 0, `ties` competitors at -gap, and a background
// of r = n - 1 - ties logits at -spread (j / r)^crowding for j = 1 ... r. A test builds the same row in
// NumPy and compares what sharpmax says about it.

const DIRECT = 256; // background logits that are summed one by one
const RATIO = 1.25; // of the ends of a block of the others
// Abscissas and weights of Gauss's rule with 8 points on [-1, 1].
const NODES = [0.1834346424956498, 0.525532409916329, 0.7966664774136267, 0.9602898564975363];
const WEIGHTS = [0.362683783378362, 0.3137066458778873, 0.2223810344533745, 0.1012285362903763];

// Group the logits of a row: gaps to the maximum, and how many logits each of them stands for.
//
// The sum of a smooth function over whole numbers is an integral and small corrections at its ends
// (Euler and Maclaurin), so a row of a million logits needs some 600 groups. Groups of the
// corrections count negatively.
export function makeRow({ n, spread, crowding, ties, gap }) {
  const competitors = Math.min(ties, n - 1);
  const background = n - 1 - competitors;
  const near = Math.min(gap, spread);
  const { places, counts } = groups(background, crowding);
  const gaps = places.map((place) => -spread * place);
  // The competitors come last; without them, their group is empty.
  gaps[gaps.length - 1] = -near;
  const counted = counts.slice();
  counted[counted.length - 1] = competitors;
  return {
    n,
    competitors,
    background,
    near,
    crowding,
    spread: background ? spread : competitors ? near : 0,
    gaps,
    counts: counted,
  };
}

// Groups of the largest logit and the background at a spread of 1, and an empty one at the end. Kept
// for the lengths of a chart: the spread changes more often than they do.
const grouped = new Map();
function groups(background, crowding) {
  const key = `${background} ${crowding}`;
  const before = grouped.get(key);
  if (before) return before;
  const places = [0];
  const counts = [1];
  const add = (place, count) => {
    places.push(Math.pow(place / background, crowding));
    counts.push(count);
  };
  const direct = background <= 2 * DIRECT ? background : DIRECT;
  for (let j = 1; j <= direct; j++) add(j, 1);
  if (direct < background) {
    const end = background + 0.5;
    for (let low = direct + 0.5; low < end; ) {
      const high = low * RATIO * RATIO > end ? end : low * RATIO;
      const centre = (low + high) / 2;
      const half = (high - low) / 2;
      for (let k = 0; k < NODES.length; k++) {
        add(centre - half * NODES[k], half * WEIGHTS[k]);
        add(centre + half * NODES[k], half * WEIGHTS[k]);
      }
      low = high;
    }
    add(background, 1 / 24);
    add(background + 1, -1 / 24);
    add(direct + 1, 1 / 24);
    add(direct, -1 / 24);
  }
  places.push(0);
  counts.push(0);
  const made = { places: Float64Array.from(places), counts: Float64Array.from(counts) };
  if (grouped.size >= 256) grouped.clear();
  grouped.set(key, made);
  return made;
}

// Mass, entropy in nats and variance of the logits at an inverse temperature.
export function temper(row, beta) {
  const { gaps, counts } = row;
  let mass = 0;
  let moment = 0;
  let square = 0;
  for (let i = 0; i < gaps.length; i++) {
    const gap = gaps[i];
    const weight =
      beta === Infinity ? (gap === 0 ? counts[i] : 0) : counts[i] * Math.exp(beta * gap);
    mass += weight;
    moment += weight * gap;
    square += weight * gap * gap;
  }
  const mean = moment / mass;
  const entropy = Math.log(mass) - (beta === Infinity ? 0 : beta * mean);
  return { mass, entropy, variance: Math.max(square / mass - mean * mean, 0) };
}

// The gap of the logit of a rank, which counts from 1, the largest first.
export function gapOfRank(row, rank) {
  if (rank <= 1 || row.n < 2) return 0;
  const { background, competitors, near, crowding, spread } = row;
  const at = (j) => (j < 1 ? 0 : -spread * Math.pow(j / background, crowding));
  // Competitors stand behind the logits of the background that are above them.
  const share = spread > 0 ? Math.pow(near / spread, 1 / crowding) : 0;
  const above = background ? Math.min(Math.ceil(share * background) - 1, background) : 0;
  const before = Math.max(above, 0) + 1;
  if (rank <= before) return at(rank - 1);
  if (rank <= before + competitors) return -near;
  return at(rank - 1 - competitors);
}

const numberIn = (low, high, { open = false } = {}) => ({
  parse: Number,
  valid: (value) => Number.isFinite(value) && (open ? value > low : value >= low) && value <= high,
  expected: `a number ${open ? "above" : "of at least"} ${low}`,
});
const numbers = {
  parse: (text) => String(text).split(/[\s,]+/).filter(Boolean).map(Number),
  valid: (values) => values.length > 0 && values.every(Number.isFinite),
  expected: "numbers, separated by commas",
};

// Everything about a policy: parameters, formula, and beta from (entropy, n, row).
export const POLICIES = {
  Identity: {
    label: "Plain softmax",
    formula: "β = 1",
    about: "No correction: the largest weight falls like 1/n.",
    parameters: {},
    beta: () => 1,
  },
  Paper: {
    label: "Paper's rule",
    formula: "β = max(1, p(H)) for H > 0.5, p of degree 4",
    about: "A polynomial in the entropy. Above 5.945 nats it gives no correction.",
    parameters: {},
    beta: (_, { entropy, n }) =>
      polynomial([-0.037, 0.481, -2.3, 4.917, -1.791], 0.5, entropy - 1e-9 * n),
    highest: 5.945,
  },
  Exponential: {
    label: "Exponential",
    formula: "β = exp(strength · max(0, H − reference))",
    about: "Follows the entropy without a ceiling. Logits that tie keep sharing the weight.",
    parameters: {
      reference: { ...numberIn(0, 1e6), start: 1.5, low: 0, high: 8, step: 0.05, unit: "nats" },
      strength: { ...numberIn(0, 1e6), start: 1, low: 0, high: 2, step: 0.05 },
    },
    beta: ({ reference, strength }, { entropy }) =>
      Math.exp(strength * Math.max(0, entropy - reference)),
  },
  EntropyTarget: {
    label: "Entropy target",
    formula: "β solves H(softmax(β e)) = target, β ≤ limit",
    about: "Reaches the target exactly, unless more than exp(target) logits tie for the maximum.",
    parameters: {
      target: { ...numberIn(0, 1e6), start: 1.5, low: 0, high: 8, step: 0.05, unit: "nats" },
      limit: { ...numberIn(1, 1e30), start: 1e6, text: true },
    },
    beta: solveTarget,
  },
  LogLength: {
    label: "Log length (SSMax)",
    formula: "β = max(1, scale · log n / log N); without N: scale · log n",
    about: "Grows with log n, whatever the row looks like.",
    parameters: {
      scale: { ...numberIn(0, 1e6), start: 1, low: 0, high: 3, step: 0.05 },
      train_length: {
        start: 16,
        text: true,
        optional: true,
        parse: (text) => (text === "" || text === null ? null : Number(text)),
        valid: (value) => value === null || (value > 1 && value < Infinity),
        expected: "a number above 1, or nothing",
      },
    },
    beta: ({ scale, train_length: length }, { n }) =>
      Math.max(1, (scale / (length === null ? 1 : Math.log(length))) * Math.log(n)),
  },
  Constant: {
    label: "Constant",
    formula: "β = beta",
    about: "Moves the length at which a row disperses; does not remove it.",
    parameters: { beta: { ...numberIn(0, 1e6, { open: true }), start: 2, low: 0.1, high: 10, step: 0.1 } },
    beta: ({ beta }) => beta,
  },
  Monotone: {
    label: "Monotone curve",
    formula: "log β interpolates the knots (H, β)",
    about: "A curve fitted to data. Above the last knot it follows the exponential law, or stays.",
    parameters: {
      entropies: {
        ...numbers,
        start: "1, 3, 5",
        text: true,
        unit: "nats",
        valid: (values) => numbers.valid(values) && values[0] >= 0 && ascends(values, true),
        expected: "increasing numbers of at least 0, separated by commas",
      },
      inverse_temperatures: {
        ...numbers,
        start: "1, 4, 16",
        text: true,
        valid: (values) => numbers.valid(values) && values[0] >= 1 && ascends(values, false),
        expected: "numbers of at least 1 that never decrease, separated by commas",
      },
      outside: { start: "exponential", choices: ["exponential", "constant"] },
    },
    check: ({ entropies, inverse_temperatures: betas }) =>
      entropies.length === betas.length ? "" : "expected as many inverse_temperatures as entropies",
    beta: monotone,
  },
  Polynomial: {
    label: "Polynomial",
    formula: "β = max(1, p(H)) for H > threshold",
    about: "Your own coefficients, highest power first.",
    parameters: {
      coefficients: { ...numbers, start: "2, -1", text: true },
      threshold: { ...numberIn(0, 1e6), start: 0.5, low: 0, high: 5, step: 0.1, unit: "nats" },
    },
    beta: ({ coefficients, threshold }, { entropy }) =>
      polynomial(coefficients, threshold, entropy),
  },
  Hard: {
    label: "Hard maximum",
    formula: "β = ∞",
    about: "All weight on the maximum; logits that tie for it share the weight. No gradient.",
    parameters: {},
    beta: () => Infinity,
  },
};

function ascends(values, strictly) {
  return values.every((x, i) => i === 0 || (strictly ? x > values[i - 1] : x >= values[i - 1]));
}

function polynomial(coefficients, threshold, entropy) {
  const value = coefficients.reduce((sum, coefficient) => sum * entropy + coefficient, 0);
  return entropy > threshold ? Math.max(value, 1) : 1;
}

function monotone({ entropies, inverse_temperatures: betas, outside }, { entropy }) {
  const last = entropies.length - 1;
  let logarithm = Math.log(betas[0]);
  for (let k = 0; k < last; k++) {
    const width = entropies[k + 1] - entropies[k];
    const slope = (Math.log(betas[k + 1]) - Math.log(betas[k])) / width;
    logarithm += slope * Math.min(Math.max(entropy - entropies[k], 0), width);
  }
  if (outside === "exponential") logarithm += Math.max(entropy - entropies[last], 0);
  return Math.exp(Math.max(logarithm, 0));
}

// Newton's method in log(beta). It halves the bracket where a step leaves it or gains too little.
function solveTarget({ target, limit }, { entropy, at }) {
  if (!(entropy > target)) return 1;
  if (at(limit).entropy >= target) return limit;
  let [lower, upper, before] = [0, Math.log(limit), Infinity];
  let position = Math.min(entropy - target, upper);
  for (let step = 0; step < 64 && upper - lower > 1e-14; step++) {
    const beta = Math.exp(position);
    const tempered = at(beta);
    const excess = tempered.entropy - target;
    if (excess > 0) lower = position;
    else upper = position;
    const newton = position + excess / (beta * beta * tempered.variance);
    const halve = Math.abs(excess) > before / 2 || !(newton > lower && newton < upper);
    const next = halve ? (lower + upper) / 2 : newton;
    if (Math.abs(excess) < 1e-13 || next === position) break;
    before = Math.abs(excess);
    position = next;
  }
  return Math.min(Math.max(Math.exp(position), 1), limit);
}

// What a policy makes of a row: beta, and the entropy, mass and largest weight at it.
//
// `at` gives mass, entropy and variance at a beta.
export function respond(name, parameters, n, at, plain = at(1)) {
  const beta = POLICIES[name].beta(parameters, { entropy: plain.entropy, n, at });
  const { entropy, mass } = beta === 1 ? plain : at(beta);
  return { beta, entropy, mass, largest: 1 / mass };
}

// Lemma 2.1: exp(-spread beta) / n <= every coefficient <= exp(spread beta) / n.
export function bounds(n, spread, beta = 1) {
  const exponent = spread * beta;
  return { lower: Math.exp(-exponent) / n, upper: Math.exp(exponent - Math.log(n)) };
}

// The number of items from which no coefficient can reach epsilon, by the upper bound.
export function criticalLength(spread, epsilon) {
  return Math.floor(Math.exp(spread) / epsilon) + 1;
}

// The first n of a shape at which the largest weight of a rule is below epsilon, or null.
//
// The weights at ascending lengths bracket it; halving finds it to within a thousandth.
export function firstBelow(lengths, weights, epsilon, weightAt) {
  const index = weights.findIndex((weight) => weight < epsilon);
  if (index < 0) return null;
  if (index === 0) return lengths[0];
  let [low, high] = [lengths[index - 1], lengths[index]];
  while (high - low > Math.max(1, low / 1000)) {
    const middle = Math.round((low + high) / 2);
    if (weightAt(middle) < epsilon) high = middle;
    else low = middle;
  }
  return high;
}
