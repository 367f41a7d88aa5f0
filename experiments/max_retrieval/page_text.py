"""What the report of max retrieval says in words, with figures from the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from experiments.common.methods import look
from experiments.max_retrieval.cells import percent, recipe_text
from experiments.max_retrieval.selection import Line, lines, main_recipe, weights_kinds
from sharpmax.policies import Paper

if TYPE_CHECKING:
    from experiments.max_retrieval.records import Table

_NAMED: Final = {
    "softmax": "with plain softmax",
    "paper": "with the paper's rule",
    "exponential": "with sharpmax's exponential law",
}

WHY: Final = (
    "Softmax over more items has to spread its weight: with bounded logits every coefficient falls"
    " like 1/n. So a model that learned to look one thing up among few items fails among many,"
    " whatever it knows. A temperature that follows the entropy of each row gives the weight back,"
    " as far as the order of the logits is right."
)
FORMULA: Final = "beta = exp(max(0, H - reference));   weights = softmax(beta * logits)"
ATTENTION_COMPARED: Final = (
    "The 16 items of highest priority in 32 sets, from small sets to large ones. Bright first"
    " columns mean that the head looks at the right item."
)
ATTENTION_SOFTMAX: Final = "Plain softmax alone, at every size: the weight drains away."
FIT: Final = (
    "Each point is a row: its entropy under plain softmax, and the inverse temperature at which the"
    " largest item gets the most weight. Lines are rules that know the entropy alone."
)
PLANE: Final = "The entropy falls with the temperature, whatever the logits are."
PLANE_ALT: Final = (
    "Heat map of the entropy of softmax over ten powers of a base, against the base and the"
    " temperature: low for small temperatures and large bases, and log 10 at base 1."
)
TRAINED_ALT: Final = (
    "Accuracy against the number of items for heads trained and tested with the same method; the"
    " table below has the figures."
)
BEYOND_ALT: Final = (
    "Accuracy against the number of items for changes of training and weighting; the table below"
    " has the figures."
)


@dataclass(frozen=True)
class Facts:
    """Sentences and entries of the page that depend on the data.

    Attributes:
        what_one_sees: The first sentences.
        accuracy_alt: What the figure of accuracy shows, for those who do not see it.
        attention_alt: The same for the attention maps of all methods.
        softmax_alt: The same for those of softmax.
        fit_alt: The same for the fit.
        how_it_works: The mechanism.
        code: What to write.
        commands: What to run.
        ran: What ran, by name.
    """

    what_one_sees: str
    accuracy_alt: str
    attention_alt: str
    softmax_alt: str
    fit_alt: str
    how_it_works: str
    code: str
    commands: list[str]
    ran: dict[str, str]


def facts(table: Table, figures: dict[str, Any] | None) -> Facts:
    """All that the page says of these data.

    Args:
        table: The results.
        figures: Data of the figures, or None.

    Raises:
        LookupError: The results have no method at inference.
    """
    kinds = weights_kinds(table, "inference")
    if not kinds:
        raise LookupError("the results have no method at inference to report on")
    data = figures or {}
    found = {method: line for (_, method), line in lines(table, "inference", kinds[0]).items()}
    reference = data.get("fit", {}).get("reference")
    where = "where the head works" if reference is None else f"{reference:.2f} nats for this head"
    return Facts(
        what_one_sees=_what_one_sees(table, found),
        accuracy_alt=_accuracy_alt(found),
        attention_alt=_attention_alt(data, None),
        softmax_alt=_attention_alt(data, "softmax"),
        fit_alt=(
            "Best inverse temperature of rows against their entropy, with the published polynomial,"
            f" which is 1 above {Paper.LAST_ENTROPY} nats, a polynomial fitted here, and the"
            " exponential law."
        ),
        how_it_works=(
            "H is the entropy of a row under plain softmax, in nats. The reference is its value at"
            f" sizes where the head works ({where}), so there little changes. Each further nat of"
            " entropy means that e times as many items compete, and the logits are made e times as"
            " steep. It takes one pass over the row, no training and no label. The paper's rule is"
            " a polynomial in H, which is never above 2.42 and switches itself off above"
            f" {Paper.LAST_ENTROPY} nats."
        ),
        code=_code(reference),
        commands=[
            *dict.fromkeys(each for each in (table.command, data.get("command", "")) if each),
            "sharpmax theory --spread 5.69 --epsilon 0.01",
        ],
        ran=_ran(table, data),
    )


def _what_one_sees(table: Table, found: dict[str, Line]) -> str:
    shown = [name for name in _NAMED if name in found] or list(found)[:3]
    common = set.intersection(*(set(found[name]) for name in shown))
    if not common:
        shown, common = shown[:1], set(found[shown[0]])
    n, first = max(common), min(common)
    recipe = table.recipes.get(main_recipe(table) or "", {})
    largest = recipe.get("largest")
    trained = f" on sets of at most {largest:,} items" if largest else ""

    each = [
        f"{percent(found[name][n].mean)}% of sets {_NAMED.get(name, 'with ' + look(name).label)}"
        for name in shown
    ]
    right = each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"
    sentences = [
        (
            f"An attention head was trained{trained} to name the class of the item with the highest"
            " priority, where guessing is right in 10% of sets."
        ),
        f"Among {n:,} items it is right in {right}.",
        "The weights are the same each time: only the temperature of the attention differs.",
    ]
    if first != n:
        share = percent(found[shown[0]][first].mean)
        sentences.insert(1, f"Among {first:,} items it is right in {share}% of sets.")
    return " ".join(sentences)


def _accuracy_alt(found: dict[str, Line]) -> str:
    # A text that is read aloud keeps to what matters; the table has the rest.
    shown = {name: found[name] for name in _NAMED if name in found} or found
    each = [
        f"{look(name).label} from {percent(line[min(line)].mean)}% at {min(line):,} items to"
        f" {percent(line[max(line)].mean)}% at {max(line):,}"
        for name, line in shown.items()
    ]
    return f"Accuracy against the number of items: {'; '.join(each)}."


def _attention_alt(data: dict[str, Any], only: str | None) -> str:
    attention = data.get("attention")
    if not attention:
        return ""
    each = []
    for name, weights in zip(attention["methods"], attention["weights"], strict=True):
        if only in (None, name):
            means = [sum(row[0] for row in weights[end]) / len(weights[end]) for end in (0, -1)]
            each.append(f"{look(name).label} from {means[0]:.3f} to {means[1]:.3f}")
    sizes = attention["sizes"]
    return (
        f"Heat maps of attention from {sizes[0]:,} to {sizes[-1]:,} items. Mean weight of the item"
        f" with the highest priority: {'; '.join(each)}."
    )


def _code(reference: float | None) -> str:
    value = "reference" if reference is None else f"{reference:.2f}"
    first = "" if reference is None else "  # that of this head; measure yours"
    measured = (
        "reference = sharpmax.entropy(logits_at_a_length_that_works).mean()\n"
        if reference is None
        else ""
    )
    return (
        "import sharpmax\nfrom sharpmax.policies import Exponential\n\n"
        f"{measured}policy = Exponential(reference={value}){first}\n"
        "weights = sharpmax.softmax(logits, policy)\n"
        "output = sharpmax.attention(query, key, value, policy=policy)"
    )


def _ran(table: Table, data: dict[str, Any]) -> dict[str, str]:
    recipe = main_recipe(table)
    described = recipe_text(table.recipes.get(recipe or ""))
    entries = {
        "Command": table.command,
        "Command of the figures": data.get("command", ""),
        "Training": f"{recipe}: {described}" if described else str(recipe),
        "Seeds": ", ".join(map(str, table.seeds)),
        "Versions": ", ".join(f"{name} {value}" for name, value in table.versions.items()),
        "Machine": ", ".join(f"{name} {value}" for name, value in table.machine.items()),
    }
    return {name: value for name, value in entries.items() if value}
