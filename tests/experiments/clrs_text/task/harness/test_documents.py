from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from experiments.clrs_text.task import algorithms, harness
from experiments.clrs_text.task._examples import split_of
from experiments.clrs_text.task.harness import documents as functions
from experiments.clrs_text.task.harness.documents import (
    ALGORITHMS,
    LENGTHS,
    documents,
    process_results,
    records,
)


class Loader(yaml.SafeLoader):
    """Reads a description as the harness does: `!function file.name` is what bears the name."""

    def function(self, node: yaml.ScalarNode) -> Any:
        file, _, name = self.construct_scalar(node).rpartition(".")
        assert (harness.FOLDER / f"{file}.py").samefile(functions.__file__)
        return getattr(functions, name)


Loader.add_constructor("!function", Loader.function)


def _task(name: str) -> dict[str, Any]:
    read = yaml.load((harness.FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), Loader)
    return (_task(read.pop("include").removesuffix(".yaml")) if "include" in read else {}) | read


@pytest.mark.parametrize("name", ["clrs_text", "clrs_text_hints"])
def test_a_description_asks_and_scores_by_these_functions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = SimpleNamespace(Dataset=SimpleNamespace(from_list=list))
    monkeypatch.setitem(sys.modules, "datasets", lists)
    task = _task(name)
    assert task["task"] == name
    # As the harness calls it: with what the user says, and with what says nothing here.
    said = {"pretrained": "some", "lengths": [4, 8], "each": 2}
    asked = task["custom_dataset"](**(task["metadata"] | said))
    (split,) = asked
    assert split == task["test_split"]
    assert len(asked[split]) == len(ALGORITHMS) * 2 * 2
    metrics = {each["metric"] for each in task["metric_list"]}
    assert metrics == {"exact_match", *(f"length_{length:03d}" for length in LENGTHS)}
    for document in asked[split]:
        question, answer = document[task["doc_to_text"]], document[task["doc_to_target"]]
        assert question.startswith(f"{document['algorithm']}:\n")
        assert split_of(question) == "test"
        assert answer.endswith(task["generation_kwargs"]["until"][0])
        traced = name.endswith("hints") and document["algorithm"] != "segments_intersect"
        assert ("|" in answer) == traced
        right, wrong = (
            task["process_results"](document, [text]) for text in (answer.strip(), "[7]")
        )
        assert right == {"exact_match": 1.0, f"length_{document['length']:03d}": 1.0}
        assert set(wrong.values()) == {0.0}
        assert set(right) <= metrics


def test_the_algorithms_exist_and_settings_are_heeded() -> None:
    assert set(ALGORITHMS) < set(algorithms())
    drawn = records(algorithms=["bfs"], lengths=[5], each=3, seed=1)
    assert [(each["algorithm"], each["length"]) for each in drawn] == [("bfs", 5)] * 3
    assert drawn == records(algorithms="bfs", lengths=5, each=3, seed=1)
    assert drawn != records(algorithms="bfs", lengths=5, each=3, seed=2)


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"sharpmax\[harness\]"):
        documents()


def test_only_the_first_result_counts() -> None:
    assert process_results({"answer": "3\n\n", "length": 4}, ["2", "3"])["exact_match"] == 0
