"""Files of results and policies that are cut off, forged, huge or nested: one sentence each."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from calibrations import CALIBRATIONS, make_evaluation
from diagnoses import make_diagnosis
from sharpmax import SharpmaxError, _files
from sharpmax._files import write_sealed
from sharpmax.models import Diagnosis
from sharpmax.models._evaluation.cells import Cell
from sharpmax.models._saved import Saved
from sharpmax.policies import Monotone, Policy

CELLS = [Cell("passkey", 1024, "usual"), Cell("text", 1024, "usual")]
EVALUATION = make_evaluation({"plain": 0.5, "constant": 0.8}, CELLS, questions=4, contexts=2)
RESULTS: list[Saved] = [
    CALIBRATIONS["constant+gain"],
    make_diagnosis([["dispersing", None]]),
    EVALUATION,
]
POLICY = Monotone([[0.5, 1.0], [0.6, 2.0]], [[1.0, 1.5], [1.0, 3.0]])
OTHERS: list[Any] = [None, True, -1, 10**400, 1.5, "text", [], {"a": 1}]

each_result = pytest.mark.parametrize("result", RESULTS, ids=lambda each: type(each).__name__)


def refusal(path: Path, kind: type[Saved]) -> str:
    """Read a file and say what is in it; return the sentence that refuses it, or nothing."""
    try:
        found: Any = kind.load(path)
        found.summary()
    except SharpmaxError as error:
        return str(error)
    return ""


@each_result
def test_cut_off(result: Saved, tmp_path: Path) -> None:
    path = result.save(tmp_path / "whole.json")
    whole = path.read_bytes()
    assert not refusal(path, type(result))
    for part in range(20):
        path.write_bytes(whole[: len(whole) * part // 20])
        with pytest.raises(SharpmaxError, match="truncated or damaged"):
            type(result).load(path)


NESTED = b"[" * 100_000 + b"]" * 100_000


@each_result
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (NESTED, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
        (b'{"kind": NaN}', "NaN is not JSON"),
        (b'{"kind": ' + b"9" * 5000 + b"}", "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b"\x00" * 1000, "damaged"),
        (b'{"kind": "KIND", "a": 1e999}', "changed after it was written"),
        (b'{"kind": "KIND", "seal": [], "a": 1}', "changed after it was written"),
    ],
)
def test_no_json_or_no_seal(result: Saved, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "forged.json"
    path.write_bytes(content.replace(b"KIND", type(result).FORMAT.encode()))
    with pytest.raises(SharpmaxError, match=said):
        type(result).load(path)


def test_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(_files._LARGEST + 1)  # takes no space
    with pytest.raises(SharpmaxError, match="expected at most 268,435,456 bytes"):
        Diagnosis.load(path)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every entry of plain data; of a list only the first."""
    entries = data.items() if isinstance(data, dict) else enumerate(data[:1])
    for key, value in entries:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def forgeries(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The data with one entry that is another one, or missing."""
    for place in places(data):
        for other in (*OTHERS, ...):
            forged = copy.deepcopy(data)
            parent: Any = forged
            for key in place[:-1]:
                parent = parent[key]
            if other is ...:
                del parent[place[-1]]
            else:
                parent[place[-1]] = other
            yield forged


@each_result
def test_forged_with_a_seal(result: Saved, tmp_path: Path) -> None:
    path = tmp_path / "forged.json"
    said = []
    for forged in forgeries(result.to_dict()):
        write_sealed(path, type(result).FORMAT, forged)
        said.append(refusal(path, type(result)))
    refused = [sentence for sentence in said if sentence]
    assert len(refused) > 0.5 * len(said) > 100
    assert all(len(each) < 1000 and each.startswith(f"{path}: expected") for each in refused)


def test_forged_policies() -> None:
    for forged in forgeries(POLICY.to_dict()):
        with suppress(SharpmaxError):
            Policy.from_json(json.dumps(forged))
    for text in (NESTED.decode(), '{"format": NaN}', "9" * 5000, POLICY.to_json()[:-5]):
        with pytest.raises(SharpmaxError, match="policy: truncated or damaged"):
            Policy.from_json(text)
