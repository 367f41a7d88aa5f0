"""Evaluate a model on long prompts, unchanged and with changes to its attention."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from sharpmax._engine import Engine, Tell, run_cells
from sharpmax._files import SettingsChangedError, locked, refuse_earlier
from sharpmax._settings import METRIC, TASKS, WORDINGS, EvaluationSettings, Task, Wording
from sharpmax._version import __version__
from sharpmax.models._answers import answer_shared
from sharpmax.models._calibration.objectives import text_loss
from sharpmax.models._calibration.result import Calibration
from sharpmax.models._evaluation import cells as asking
from sharpmax.models._evaluation.arms import Change, arms_of, named
from sharpmax.models._evaluation.cells import Cell
from sharpmax.models._evaluation.result import CellResult, Evaluation
from sharpmax.models._inspect import (
    attention_layers,
    check_causal_lm,
    inner_model,
)
from sharpmax.models._open import open_model
from sharpmax.models._share import Share
from sharpmax.models._sharpen import sharpen
from sharpmax.models._way import evaluation_mode
from sharpmax.policies import Policy
from sharpmax.tasks import Tokenizer, own_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EvaluationProgress(NamedTuple):
    """How far an evaluation is.

    Attributes:
        arm: Name of the present arm.
        cell: The present cell.
        answered: Questions that are answered, or windows that are read, in this arm and cell.
        questions: Number of questions or windows in this arm and cell.
        finished: Finished pairs of arm and cell.
        total: Number of pairs of arm and cell.
    """

    arm: str
    cell: Cell
    answered: int
    questions: int
    finished: int
    total: int


Metric = Callable[[Any, Sequence[Any]], Any]
"""A function of a model and some items that returns one number per item; more is better."""

OnProgress = Callable[[EvaluationProgress], None]


def evaluate(
    model: nn.Module,
    tokenizer: Tokenizer | None = None,
    texts: str | Sequence[str] | Mapping[str, str] | None = None,
    *,
    metric: Metric | None = None,
    data: Mapping[int, Sequence[Any]] | None = None,
    changes: Policy | Calibration | Mapping[str, Policy | Calibration] | None = None,
    controls: bool | None = None,
    tasks: Sequence[Task] = TASKS,
    lengths: Sequence[int] | None = None,
    wordings: Sequence[Wording] = WORDINGS,
    questions: int = EvaluationSettings.questions,
    contexts: int = EvaluationSettings.contexts,
    windows: int = EvaluationSettings.windows,
    seed: int = EvaluationSettings.seed,
    path: str | Path | None = None,
    resume: bool = False,
    command: str = "",
    engine: Engine = "local",
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Measure the accuracy of a language model on long prompts, and its loss on long text.

    Or measure any model, also one that is not of transformers, by a metric of your own.

    Without `changes` only the plain model is evaluated. With a policy or calibrations, every one of
    them answers the same questions, so differences are paired. `Evaluation.verdict` then judges
    whether a calibration helps and whether sharpening is the reason. For that, give one calibration
    of temperatures and one of gains; `sharpmax calibrate` makes both.

    Args:
        model: A causal language model of transformers; with a metric, any model that
            `sharpmax.sharpen` can reach. It is left unchanged.
        tokenizer: Its tokenizer, unless there is a metric.
        texts: Texts that hide the questions, best by name. No calibration should be fitted on them.
            By default the source code of sharpmax.
        metric: A function of the model and some items that returns one number per item, of which
            more is better. Tasks, wordings, questions, contexts and windows then do not apply.
        data: With a metric: items by their length. Items with the same `context`, if they have that
            attribute, are not independent.
        changes: What to compare with the plain model: a policy for all heads, a calibration, or
            several of these by name.
        controls: Whether to add controls: the paper's rule in all heads, the same beta in all
            heads, and the best calibration with its heads shuffled. By default if there are
            changes.
        tasks: Some of "passkey", "key-value", "maximum" and "text".
        lengths: Tokens per prompt and window. By default 1,024, 2,048 and 4,096, as far as the
            model allows.
        wordings: Wordings of passkey and key-value: "usual", "unseen", or both.
        questions: Questions per task, length and wording.
        contexts: Passages of text that the questions are about.
        windows: Windows of text per length, at most.
        seed: Seed of the questions.
        path: File that is written after every cell, so that the evaluation can be resumed.
        resume: Resume the evaluation in `path`; without it an existing file is refused.
        command: Command to store in the file.
        engine: "local" asks arm by arm and cell by cell; "ray" asks several at a time on a Ray
            cluster, which gets a copy of the model.
        on_progress: Called after each question and window.

    Returns:
        The evaluation, with `summary`, `verdict` and `save`.

    Raises:
        CannotSharpenError: The model is no causal language model, or its attention cannot be
            reached.
        FileExistsError: `path` exists, and `resume` is false.
        RefusedError: Another process is writing to the folder of `path`.
        SettingsChangedError: `path` has other settings, or another change of the same name.
        ValueError: A text or a length is too short, or the model has too few positions.

    Example:
        >>> import sharpmax, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from sharpmax.policies import Constant
        >>> class Bytes:
        ...     def encode(self, text, *, add_special_tokens=True):
        ...         return list(text.encode())
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        >>> config = LlamaConfig(vocab_size=256, num_attention_heads=2, **sizes)
        >>> asked = {"tasks": ["passkey"], "lengths": [128, 256], "wordings": ["usual"]}
        >>> options = {"questions": 2, "contexts": 2, "controls": False, **asked}
        >>> evaluation = sharpmax.evaluate(
        ...     LlamaForCausalLM(config), Bytes(), changes={"sharp": Constant(2.0)}, **options
        ... )
        >>> print(evaluation.summary())
        llama (float32): 2 questions in 2 contexts, or 16 windows, per cell
        accuracy by length in tokens; for text the loss in nats per token
        <BLANKLINE>
        task     arm     128   256
        passkey  plain  0.0%  0.0%
                 sharp  0.0%  0.0%
    """
    compared = named(changes)
    arms = arms_of(compared, controls=bool(compared) if controls is None else controls)
    if metric is not None:
        if not data:
            raise ValueError("data: expected items by length with a metric, got none")
        way, most = open_model(model), max(map(len, data.values()))
        name = Path(way.identity[0]).name or way.identity[1]
        settings = EvaluationSettings(name, {}, most, most, 0, seed, way.dtype)
        cells = [Cell(METRIC, length) for length in lengths or sorted(data)]
        with ExitStack() as stack:
            evaluation = _opened(way.share, stack, path, settings, command, resume)
            run(
                evaluation, way.model, None, (), arms, cells,
                metric=metric, data=data, path=path, engine=engine, on_progress=on_progress,
            )  # fmt: skip
        return evaluation
    if tokenizer is None:
        raise ValueError("tokenizer: expected one unless there is a metric, got None")
    inner = inner_model(model)
    check_causal_lm(inner, attention_layers(inner))
    by_name = named_texts(texts)
    cells = asking.cells_of(tasks, lengths or asking.default_lengths(inner), wordings)
    asking.check_texts(tokenizer, by_name, max(cell.length for cell in cells))
    asking.check_cells(inner, tokenizer, list(by_name.values()), cells)
    settings = EvaluationSettings(
        **facts_of(inner, by_name), questions=questions, contexts=contexts, windows=windows,
        seed=seed,
    )  # fmt: skip
    with ExitStack() as stack:
        share = open_model(inner).share
        evaluation = _opened(share, stack, path, settings, command, resume)
        run(
            evaluation, inner, tokenizer, list(by_name.values()), arms, cells,
            path=path, engine=engine, on_progress=on_progress,
        )  # fmt: skip
    return evaluation


def _opened(
    share: Share,
    stack: ExitStack,
    path: str | Path | None,
    settings: EvaluationSettings,
    command: str,
    resume: bool,
) -> Evaluation:
    """Open an evaluation on the first rank, and hold its folder against other runs."""

    def opened() -> Evaluation:
        if path is not None:
            folder = Path(path).absolute().parent
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
        return open_evaluation(path, settings, command, resume=resume)

    share.agree(settings=settings)
    return share.once(opened)


def named_texts(texts: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Give names to texts; without any, take the source code of sharpmax."""
    if texts is None:
        return {f"the source code of sharpmax {__version__}": own_source()}
    if isinstance(texts, str):
        return {"text": texts}
    if isinstance(texts, Mapping):
        return dict(texts)
    return {f"text {number}": text for number, text in enumerate(texts, 1)}


def facts_of(model: PreTrainedModel, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that a model and texts by name decide, without the folders of a path."""
    name = str(getattr(model.config, "_name_or_path", "") or model.config.model_type)
    name = Path(name).name if Path(name).exists() else name
    dtype = str(model.dtype).removeprefix("torch.")
    return {"model": name, "texts": sizes_of(texts), "dtype": dtype}


def sizes_of(texts: Mapping[str, str]) -> dict[str, int]:
    """Return the number of characters of each text."""
    return {name: len(text) for name, text in texts.items()}


def open_evaluation(
    path: str | Path | None, settings: EvaluationSettings, command: str, *, resume: bool = False
) -> Evaluation:
    """Start an evaluation, or load one with the same settings to resume it."""
    if path is None or not Path(path).exists():
        return Evaluation(settings, command)
    if not resume:
        refuse_earlier(Path(path))
    found = Evaluation.load(path)
    if found.settings != settings:
        raise SettingsChangedError(
            f"{path}: the evaluation there has {found.settings}, not {settings}; resume it with "
            "the same settings, or choose another file"
        )
    if command not in found.command.splitlines():
        found.command += f"\n{command}"
    return found


def run(
    evaluation: Evaluation,
    model: Any,
    tokenizer: Tokenizer | None,
    texts: Sequence[str],
    arms: Mapping[str, Change],
    cells: Sequence[Cell],
    *,
    metric: Metric | None = None,
    data: Mapping[int, Sequence[Any]] | None = None,
    path: str | Path | None = None,
    engine: Engine = "local",
    on_progress: OnProgress | None = None,
) -> None:
    """Add the missing results to an evaluation, and write its file after every one of them."""
    share = open_model(model).share
    share.agree(arms=[*arms], cells=[*map(str, cells)])
    if engine != "local" and share.size > 1:
        raise ValueError(
            f"engine: expected 'local' where {share.size} ranks share the questions, got {engine!r}"
        )
    evaluation.add_arms(arms)
    order = {(arm, cell): place for place, (cell, arm) in enumerate(product(cells, arms))}
    missing = [pair for pair in order if evaluation.find(*pair) is None]
    # Arms that do the same share their answers.
    asked: dict[tuple[str, Cell], str] = {}
    for arm, cell in missing:
        if evaluation.equal(arm, cell) is None:
            asked.setdefault((json.dumps(evaluation.arms[arm], sort_keys=True), cell), arm)
    waiting = len(missing)

    def on_message(pair: tuple[str, Cell], at: tuple[int, int]) -> None:
        if on_progress is not None and share.first:
            done = len(missing) - waiting + (at[0] == at[1])
            on_progress(EvaluationProgress(*pair, *at, done, len(missing)))

    def keep(*found: CellResult) -> None:
        """Keep a result, and those of arms that do the same as one that is there."""
        nonlocal waiting
        before = len(evaluation.results)
        evaluation.results += found
        for pair in missing:
            if evaluation.find(*pair) is None and (same := evaluation.equal(*pair)) is not None:
                evaluation.results.append(same)
        if new := len(evaluation.results) - before:
            waiting -= new
            evaluation.results.sort(key=lambda each: order.get((each.arm, each.cell), len(order)))
            if path is not None and share.first:
                evaluation.save(path)

    keep()
    ask = _Ask(share, model, tokenizer, texts, arms, evaluation.settings, metric, data)
    pairs = [(arm, cell) for (_, cell), arm in asked.items()]
    for _, found in run_cells(ask, pairs, engine=engine, on_message=on_message):
        keep(found)


@dataclass
class _Ask:
    """Ask a model the items of a cell, with the change of an arm."""

    share: Share
    model: Any
    tokenizer: Tokenizer | None
    texts: Sequence[str]
    arms: Mapping[str, Change]
    settings: EvaluationSettings
    metric: Metric | None
    data: Mapping[int, Sequence[Any]] | None
    drawn: tuple[Cell, list[Any]] | None = None  # the last ones

    def __call__(self, pair: tuple[str, Cell], tell: Tell) -> CellResult:
        arm, cell = pair
        # All arms get the same items, so that differences are paired.
        if self.drawn is None or self.drawn[0] != cell:
            if self.data is not None:
                items = list(self.data[cell.length])
            else:
                assert self.tokenizer is not None
                items = asking.items(cell, self.tokenizer, self.texts, self.model, self.settings)
            self.drawn = cell, items
        return _measure(
            self.share, self.model, arm, self.arms[arm], cell, self.drawn[1],
            lambda *at: tell(at), self.metric,
        )  # fmt: skip


def _measure(
    share: Share,
    model: Any,
    arm: str,
    change: Change,
    cell: Cell,
    drawn: Sequence[Any],
    on_item: Callable[[int, int], None],
    metric: Metric | None = None,
) -> CellResult:
    """Ask the model all items of a cell."""
    log_probabilities: list[float] = []
    example = None if metric is None else lambda found: metric(found, drawn[:1])
    changed = nullcontext() if change is None else sharpen(model, change, example=example)
    done = count(1)

    def measured(item: Any) -> float:
        (value,) = text_loss(model, [item]) if metric is None else metric(model, [item])
        on_item(int(share.of_all(next(done), len(drawn))), len(drawn))
        return float(value)

    with changed, evaluation_mode(model), torch.no_grad():
        if metric is not None or cell.task == "text":
            values = share.map(measured, drawn)
        else:
            answers = answer_shared(share, model, drawn, on_item)
            values = [float(each.exact) for each in answers]
            log_probabilities = [each.log_probability for each in answers]
    return CellResult(
        arm, cell.task, cell.length, cell.wording, tuple(values), tuple(log_probabilities),
        tuple(getattr(item, "context", number) for number, item in enumerate(drawn)),
    )  # fmt: skip
