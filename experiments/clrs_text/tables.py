"""Tables of the CLRS-Text experiment, from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from experiments.common.methods import look
from experiments.common.significance import paired_p_value
from experiments.max_retrieval.cells import p_value, percent, source
from sharpmax.report._page.tables import Table

if TYPE_CHECKING:
    from experiments.clrs_text.records import Record
    from experiments.clrs_text.records import Table as Results

__all__ = [
    "LEARNT",
    "Measure",
    "Way",
    "algorithms_table",
    "answer_table",
    "dispersion_table",
    "gains_table",
    "inference_table",
    "label_of",
    "learnt",
    "learnt_table",
    "sizes_table",
    "slopes",
    "tables",
    "tokenizers",
    "ways",
]

LEARNT: Final = 0.9
"""An algorithm is learnt where plain softmax answers this share right at the training sizes."""

_SIGNIFICANT: Final = 0.05

Measure = Literal["accuracy", "tokens"]
"""Fields of a record that a table may be about."""

_MEASURES: Final = {
    "accuracy": "Percent right",
    "tokens": "Percent of the tokens of answers that are right, those before them given,",
}


class Way(NamedTuple):
    """How a model was trained and tested.

    Attributes:
        trained_with: What made weights of logits in training.
        method: What makes them in the test.
    """

    trained_with: str
    method: str


def label_of(way: Way) -> str:
    """What readers see of a way.

    Example:
        >>> label_of(Way("softmax", "paper")), label_of(Way("paper", "paper"))
        ("paper's rule, at inference alone", "paper's rule, trained in")
    """
    if way.trained_with != "softmax":
        return f"{look(way.method).label}, trained in"
    if way.method == "softmax":
        return look("softmax").label
    return f"{look(way.method).label}, at inference alone"


def tokenizers(table: Results) -> list[str]:
    """The tokenizers that the results have, in their order."""
    return list(dict.fromkeys(record.tokenizer for record in table.records))


def ways(table: Results, tokenizer: str) -> list[Way]:
    """How models of a tokenizer were trained and tested, in the order of the results."""
    found = (Way(each.trained_with, each.method) for each in table.select(tokenizer=tokenizer))
    return list(dict.fromkeys(found))


def learnt(table: Results, tokenizer: str) -> list[str]:
    """The algorithms that plain softmax has learnt; all of them if it has learnt none."""
    shares = {name: table.accuracy_in_training(name, tokenizer) for name in table.lengths}
    found = [name for name, share in shares.items() if share is not None and share >= LEARNT]
    return found or [name for name, share in shares.items() if share is not None]


def tables(table: Results, entropy: Mapping[str, Any] | None = None) -> dict[str, str]:
    """All tables that documents may ask for, as Markdown by name.

    Args:
        table: The results.
        entropy: What `experiments.clrs_text.study.load_entropy` gave, or None.

    Returns:
        Markdown by name: clrs-text-learnt, clrs-text-answer, clrs-text-inference,
        clrs-text-inference-tokens; for each tokenizer
        clrs-text-sizes-TOKENIZER, clrs-text-tokens-TOKENIZER, clrs-text-gains-TOKENIZER,
        clrs-text-token-gains-TOKENIZER and clrs-text-algorithms-TOKENIZER; and
        clrs-text-dispersion.
    """
    found = {
        "clrs-text-learnt": learnt_table(table),
        "clrs-text-answer": answer_table(table),
        "clrs-text-inference": inference_table(table),
        "clrs-text-inference-tokens": inference_table(table, "tokens"),
    }
    for tokenizer in tokenizers(table):
        name = tokenizer.replace(" ", "-")
        found[f"clrs-text-sizes-{name}"] = sizes_table(table, tokenizer)
        found[f"clrs-text-tokens-{name}"] = sizes_table(table, tokenizer, "tokens")
        found[f"clrs-text-gains-{name}"] = gains_table(table, tokenizer)
        found[f"clrs-text-token-gains-{name}"] = gains_table(table, tokenizer, "tokens")
        found[f"clrs-text-algorithms-{name}"] = algorithms_table(table, tokenizer)
    if entropy is not None:
        found["clrs-text-dispersion"] = dispersion_table(table, entropy)
    return {name: each.to_markdown() for name, each in found.items()}


def learnt_table(table: Results) -> Table:
    """What plain softmax learns of each algorithm, at the sizes of training.

    Args:
        table: The results.

    Returns:
        A row an algorithm, what is learnt in bold.
    """
    plain = Way("softmax", "softmax")
    rows = []
    for name, (smallest, largest) in table.lengths.items():
        row = [name, f"{smallest} to {largest}"]
        for kind in tokenizers(table):
            share = table.accuracy_in_training(name, kind)
            if share is None:
                row += ["", ""]
                continue
            row.append(f"**{percent(share)}**" if share >= LEARNT else percent(share))
            row.append(percent(float(np.mean(_over_sizes(table, kind, plain, name, "tokens")))))
        rows.append(row)
    header = ["algorithm", "sizes in training"]
    for kind in tokenizers(table):
        header += [kind, "tokens"]
    below = (
        "Percent of the answers that are right to the last character with plain softmax, mean over "
        f"the sizes of training and over seeds, bold from {percent(LEARNT)}; and percent of their "
        f"tokens, those before them given. {_measured(table)}"
    )
    return Table(header, rows, caption=below, words=2)


def sizes_table(table: Results, tokenizer: str, measure: Measure = "accuracy") -> Table:
    """Every way against the size, over the algorithms that are learnt.

    Args:
        table: The results.
        tokenizer: Which of the tokenizers.
        measure: What counts: whole answers, or their tokens.

    Returns:
        A row a way: mean and deviation over seeds, and the p-value of the paired t-test against
        plain softmax at every size.
    """
    names = learnt(table, tokenizer)
    multiples = _multiples(table)
    plain = {
        times: _over_algorithms(table, tokenizer, Way("softmax", "softmax"), names, times, measure)
        for times in multiples
    }
    rows = []
    for way in ways(table, tokenizer):
        row = [label_of(way)]
        for times in multiples:
            ours = _over_algorithms(table, tokenizer, way, names, times, measure)
            row.append(_with_deviation(ours))
            tested = None if way.method == "softmax" else _compared(ours, plain[times])
            row.append(p_value(tested))
        rows.append(row)
    header = ["attention"]
    for times in multiples:
        header += [_times(times), "p"]
    below = (
        f"{_MEASURES[measure]} ± standard deviation over seeds, mean over "
        f"{_which(table, tokenizer)}; "
        "sizes are multiples of the largest in training. p is that of the paired t-test against "
        f"softmax. {_measured(table)}"
    )
    return Table(header, rows, title=f"Tokenizer: {tokenizer}", caption=below)


def algorithms_table(table: Results, tokenizer: str) -> Table:
    """Every algorithm and way against the size.

    Args:
        table: The results.
        tokenizer: Which of the tokenizers.

    Returns:
        A row an algorithm and way.
    """
    multiples = _multiples(table)
    rows: list[list[str]] = []
    for name in table.lengths:
        for way in ways(table, tokenizer):
            records = [_record(table, tokenizer, way, name, times) for times in multiples]
            if not any(records):
                continue
            cells = ["" if each is None else _with_deviation(each.accuracy) for each in records]
            told = bool(rows) and any(row[0] == name for row in rows)
            rows.append(["" if told else name, label_of(way), *cells])
    header = ["algorithm", "attention", *map(_times, multiples)]
    below = (
        "Percent right ± standard deviation over seeds; sizes are multiples of the largest in "
        f"training. {_measured(table)}"
    )
    return Table(header, rows, title=f"Tokenizer: {tokenizer}", caption=below, words=2)


def gains_table(table: Results, tokenizer: str, measure: Measure = "accuracy") -> Table:
    """What every way gains over plain softmax beyond the sizes of training, by algorithm.

    Args:
        table: The results.
        tokenizer: Which of the tokenizers.
        measure: What counts: whole answers, or their tokens.

    Returns:
        A row an algorithm, a column a way: points gained, mean over the sizes beyond training; bold
        where the paired t-test over seeds says so.
    """
    plain = Way("softmax", "softmax")
    others = [way for way in ways(table, tokenizer) if way != plain]
    multiples = _multiples(table)[1:]

    def beyond(way: Way, names: Sequence[str]) -> tuple[float, ...]:
        """Mean over the sizes, a number a seed."""
        shares = [
            _over_algorithms(table, tokenizer, way, names, times, measure) for times in multiples
        ]
        return tuple(np.mean([each for each in shares if each], axis=0).tolist())

    rows = []
    groups = [(name, [name]) for name in table.lengths]
    for label, names in [*groups, ("all that are learnt", learnt(table, tokenizer))]:
        softmax = beyond(plain, names)
        row = [label, _with_deviation(softmax)]
        for way in others:
            ours = beyond(way, names)
            gained = f"{100 * (np.mean(ours) - np.mean(softmax)):+.1f}"
            p = _compared(ours, softmax)
            row.append(f"**{gained}**" if p is not None and p < _SIGNIFICANT else gained)
        rows.append(row)
    below = (
        f"{_MEASURES[measure]} with softmax ± standard deviation over seeds, and points that the "
        f"others gain over it, mean over {', '.join(map(_times, multiples))} the largest size in "
        f"training; bold where the paired t-test over seeds gives p below {_SIGNIFICANT}. "
        f"{_measured(table)}"
    )
    header = ["algorithm", "softmax", *map(label_of, others)]
    return Table(header, rows, title=f"Tokenizer: {tokenizer}", caption=below)


def inference_table(table: Results, measure: Measure = "accuracy") -> Table:
    """What sharpening at inference alone changes, with each tokenizer: the paper's claim.

    Args:
        table: The results.
        measure: What counts: whole answers, or their tokens.

    Returns:
        For each tokenizer a row of plain softmax, and one for each method: points gained over it on
        the same weights, over the algorithms that are learnt with every tokenizer.
    """
    multiples = _multiples(table)
    plain_way = Way("softmax", "softmax")
    kinds = tokenizers(table)
    both = [name for name in table.lengths if all(name in learnt(table, kind) for kind in kinds)]
    rows = []
    for tokenizer in kinds:
        names = both or learnt(table, tokenizer)
        for way in ways(table, tokenizer):
            if way.trained_with != "softmax":
                continue
            row = [tokenizer if way == plain_way else "", look(way.method).label]
            for times in multiples:
                ours = _over_algorithms(table, tokenizer, way, names, times, measure)
                plain = _over_algorithms(table, tokenizer, plain_way, names, times, measure)
                if way == plain_way:
                    row += [_with_deviation(plain), ""]
                    continue
                gained = 100 * (np.mean(ours) - np.mean(plain)) if ours and plain else np.nan
                row += [f"{gained:+.1f}" if np.isfinite(gained) else ""]
                row += [p_value(_compared(ours, plain))]
            rows.append(row)
    header = ["tokenizer", "attention"]
    for times in multiples:
        header += [_times(times), "p"]
    which = f"the algorithms learnt with every tokenizer ({', '.join(both)})"
    if not both:
        which = "; ".join(f"{each}: {_which(table, each)}" for each in kinds)
    below = (
        f"{_MEASURES[measure]} with softmax ± standard deviation over seeds, and points gained "
        f"over it on the same weights at inference alone, mean over {which}. p is that of the "
        f"paired t-test. {_measured(table)}"
    )
    return Table(header, rows, caption=below, words=2)


def answer_table(table: Results) -> Table:
    """On which algorithms which way helps, hurts, or does nothing that can be told.

    Args:
        table: The results.

    Returns:
        Two rows a tokenizer and way, one for the sizes of training and one for those beyond:
        algorithms with the points gained over plain softmax, where the paired t-test over seeds
        gives p below 0.05.
    """
    plain = Way("softmax", "softmax")
    rows = []
    for tokenizer in tokenizers(table):
        for way in ways(table, tokenizer):
            if way == plain:
                continue
            for beyond in (False, True):
                found: dict[bool, list[str]] = {True: [], False: []}
                for name in table.lengths:
                    ours, softmax = (
                        _over_sizes(table, tokenizer, each, name, beyond=beyond)
                        for each in (way, plain)
                    )
                    p = _compared(ours, softmax)
                    gained = 100 * (np.mean(ours) - np.mean(softmax))
                    if p is not None and p < _SIGNIFICANT:
                        found[bool(gained > 0)].append(f"{name} {gained:+.1f}")
                cells = [", ".join(found[helps]) or "none" for helps in (True, False)]
                rest = len(table.lengths) - sum(map(len, found.values()))
                where = "beyond" if beyond else "in training"
                first = [] if beyond else [tokenizer, label_of(way)]
                rows.append([*(first or ["", ""]), where, *cells, str(rest)])
    below = (
        "Points of whole answers over plain softmax, mean over sizes and seeds, where the paired "
        f"t-test over seeds gives p below {_SIGNIFICANT}; one in twenty would by chance. The last "
        f"column counts the algorithms where nothing can be told. {_measured(table)}"
    )
    header = ["tokenizer", "attention", "sizes", "helps", "hurts", "neither"]
    return Table(header, rows, caption=below, words=5)


def dispersion_table(table: Results, entropy: Mapping[str, Any]) -> Table:
    """Where in the network attention spreads as inputs grow.

    Args:
        table: The results.
        entropy: What `experiments.clrs_text.study.load_entropy` gave.

    Returns:
        A row a training and layer: entropy at the largest training size and at the largest test,
        and the slope of the entropy against the logarithm of the tokens that a row sees, at the
        mean and of the head where it is largest.
    """
    rows = []
    for name, entry in entropy["arms"].items():
        means = np.asarray(entry["mean"])
        at_training = entry["multiples"].index(1.0)
        for layer, of_heads in enumerate(slopes(entry)):
            near, far = means[at_training, layer].mean(), means[-1, layer].mean()
            cells = [f"{near:.2f}", f"{far:.2f}", f"{of_heads.mean():.2f}", f"{of_heads.max():.2f}"]
            rows.append([name if layer == 0 else "", str(layer), *cells])
    header = ["training", "layer", "nats at 1x", "nats at the largest", "slope", "largest slope"]
    below = (
        "Entropy of rows that give an answer, mean over heads, first seed, plain softmax; a slope "
        f"of 1 is that of even spreading. {source(table)}"  # type: ignore[arg-type]
    )
    return Table(header, rows, caption=below, words=2)


def slopes(entry: Mapping[str, Any]) -> np.ndarray:
    """Slopes of the entropy against the logarithm of the visible tokens: [layers, heads].

    Args:
        entry: Of one arm, as `Study.measure_entropy` wrote it.
    """
    means = np.asarray(entry["mean"])
    logarithm = np.log(entry["visible"])
    return np.asarray(np.polyfit(logarithm, means.reshape(len(means), -1), 1)[0]).reshape(
        means.shape[1:]
    )


def _which(table: Results, tokenizer: str) -> str:
    """The algorithms of a mean, in words."""
    names = learnt(table, tokenizer)
    share = min(table.accuracy_in_training(name, tokenizer) or 0.0 for name in names)
    if share < LEARNT:
        return f"all algorithms, since none is learnt to {100 * LEARNT:.0f}%"
    return f"the algorithms learnt ({', '.join(names)})"


def _multiples(table: Results) -> list[float]:
    return [1.0, *table.settings.get("times", ())]


def _record(
    table: Results, tokenizer: str, way: Way, algorithm: str, times: float
) -> Record | None:
    """The record at a multiple of the largest size in training."""
    size = int(np.ceil(table.lengths[algorithm][1] * times))
    fields = {"tokenizer": tokenizer, "algorithm": algorithm, "n": size, **way._asdict()}
    return next(table.select(**fields), None)


def _over_algorithms(
    table: Results,
    tokenizer: str,
    way: Way,
    names: Sequence[str],
    times: float,
    measure: Measure = "accuracy",
) -> tuple[float, ...]:
    """Mean share right over algorithms, a number a seed."""
    found = [_record(table, tokenizer, way, name, times) for name in names]
    shares = [getattr(record, measure) for record in found if record is not None]
    return tuple(np.mean(shares, axis=0).tolist()) if shares else ()


def _over_sizes(
    table: Results,
    tokenizer: str,
    way: Way,
    algorithm: str,
    measure: Measure = "accuracy",
    *,
    beyond: bool = False,
) -> tuple[float, ...]:
    """Mean share right over the sizes of training, or over those beyond, a number a seed."""
    fields = {"tokenizer": tokenizer, "algorithm": algorithm, **way._asdict()}
    shares = [
        getattr(record, measure)
        for record in table.select(**fields)
        if table.is_seen(record) != beyond
    ]
    return tuple(np.mean(shares, axis=0).tolist()) if shares else ()


def _compared(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    if not ours or len(ours) != len(theirs):
        return None
    # Shares are no round numbers in binary: differences that agree must not differ by rounding.
    difference = [round(mine - its, 12) for mine, its in zip(ours, theirs, strict=True)]
    return paired_p_value(difference, [0.0] * len(difference))


def _with_deviation(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    if len(shares) == 1:
        return percent(shares[0])
    return f"{percent(float(np.mean(shares)))} ± {100 * np.std(shares, ddof=1):.1f}"


def _times(times: float) -> str:
    return f"{times:g}x"


def _measured(table: Results) -> str:
    """How much was tested, and by which command."""
    inside, beyond = (
        max((r.examples for r in table.records if table.is_seen(r) == seen), default=0)
        for seen in (True, False)
    )
    seeds = len(table.seeds)
    return (
        f"{seeds} seed{'s' if seeds > 1 else ''}, up to {inside} questions an algorithm and size "
        f"in training and {beyond} beyond, the same for all. {source(table)}"  # type: ignore[arg-type]
    )
