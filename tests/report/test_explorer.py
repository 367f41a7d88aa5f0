"""The explorer: its numbers are those of the library, and its page fetches nothing."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import sharpmax
import tiny_models
from diagnoses import MIXED
from pages import read
from sharpmax import policies, theory
from sharpmax._statistics import Rows
from sharpmax.models import Diagnosis, ExampleRow
from sharpmax.models._diagnosis.examples import BETAS
from sharpmax.report.explorer import explorer_html, write_explorer
from sharpmax.report.explorer.page import script

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
SETTINGS = 200
TOLERANCE = 1e-6
LONGEST = 2**20


def _dom(page: Path, address: str = "", budget: int = 2000) -> str:
    """The page after its scripts have run, in a profile of its own."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000",
        f"--user-data-dir={page.parent / 'profile'}", f"--virtual-time-budget={budget}",
        "--dump-dom", f"{page.as_uri()}{address}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def _evaluate(code: str, given: Any, folder: Path) -> Any:
    """Run JavaScript over data, with the modules of the page, and return what it makes."""
    page = folder / "evaluate.html"
    modules = script("mathematics.js", "charts.js", "heads.js")
    page.write_text(
        f"<!DOCTYPE html><meta charset=utf-8><pre id=result></pre><script type=module>{modules}\n"
        f"const given = {json.dumps(given)};\n"
        "const plain = (_, x) => typeof x === 'number' && !isFinite(x) ? String(x) : x;\n"
        f"const made = given.map(({code}));\n"
        "document.getElementById('result').textContent = JSON.stringify(made, plain);</script>",
        encoding="utf-8",
    )
    found = re.search(r'<pre id="result">(.*?)</pre>', _dom(page), re.DOTALL)
    assert found is not None
    return json.loads(html.unescape(found[1]))


def _logits(row: dict[str, Any]) -> np.ndarray:
    """The row that mathematics.js describes, written out."""
    ties = min(row["ties"], row["n"] - 1)
    background = row["n"] - 1 - ties
    places = np.arange(1, background + 1) / max(background, 1)
    near = np.full(ties, -min(row["gap"], row["spread"]))
    return np.concatenate([[0.0], near, -row["spread"] * places ** row["crowding"]])


def _drawn(count: int, seed: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(seed)
    kinds = ["Identity", "Paper", "Exponential", "EntropyTarget", "LogLength", "Constant",
             "Monotone", "Polynomial", "Hard"]  # fmt: skip
    for number in range(count):
        kind = kinds[number % len(kinds)]
        # A few rows of a million; the equation of EntropyTarget would take NumPy seconds there.
        most = 20.0 if number % 40 == 1 else 14.0 if kind == "EntropyTarget" else 17.0
        knots = np.sort(random.uniform(0, 8, 3)).tolist()
        parameters: dict[str, dict[str, Any]] = {
            "Exponential": {"reference": random.uniform(0, 6), "strength": random.uniform(0, 1.5)},
            "EntropyTarget": {
                "target": random.uniform(0.1, 5),
                "limit": 10 ** random.uniform(1, 6),
            },
            "LogLength": {"scale": random.uniform(0, 2), "train_length": random.choice([None, 64])},
            "Constant": {"beta": 2 ** random.uniform(-3, 5)},
            "Monotone": {
                "entropies": knots,
                "inverse_temperatures": np.sort(2 ** random.uniform(0, 5, 3)).tolist(),
                "outside": str(random.choice(["exponential", "constant"])),
            },
            "Polynomial": {"coefficients": random.normal(size=3).tolist(), "threshold": 0.5},
        }
        yield {
            "rule": kind,
            "parameters": parameters.get(kind, {}),
            "row": {
                "n": LONGEST if number == 1 else round(2 ** random.uniform(2, most)),
                "spread": float(random.choice([0.0, random.uniform(0, 30)], p=[0.05, 0.95])),
                "crowding": 2 ** random.uniform(-6, 2),
                "ties": int(random.integers(0, 65)),
                "gap": float(random.choice([0.0, random.uniform(0, 5)], p=[0.2, 0.8])),
            },
        }


@in_chromium
def test_numbers_are_those_of_the_library(tmp_path: Path) -> None:
    settings = list(_drawn(SETTINGS, seed=23))
    code = """({ row: shape, rule, parameters }) => {
      const row = makeRow(shape);
      const at = (beta) => temper(row, beta);
      const now = respond(rule, parameters, row.n, at);
      const lemma = bounds(row.n, row.spread);
      const ranks = [1, 2, Math.ceil(row.n / 2), row.n].map((rank) => {
        const gap = gapOfRank(row, rank);
        return (now.beta === Infinity ? Number(gap === 0) : Math.exp(now.beta * gap)) / now.mass;
      });
      return [at(1).entropy, 1 / at(1).mass, now.beta, now.entropy, now.largest, lemma.lower,
              lemma.upper, ...ranks];
    }"""
    found = np.array(_evaluate(code, settings, tmp_path), dtype=np.float64)
    for setting, computed in zip(settings, found, strict=True):
        rows = Rows(_logits(setting["row"]))
        options = {"warn": False} if setting["rule"] == "Paper" else setting["parameters"]
        policy = getattr(policies, setting["rule"])(**options)
        beta = policy.of_rows(rows)
        weights = np.sort(rows.weights(beta))[::-1]
        tempered = sharpmax.entropy(np.log(weights[weights > 0]))
        logits = _logits(setting["row"])
        n = len(logits)
        lemma = theory.dispersion_bounds(n, float(np.ptp(logits)))
        ranks = [weights[rank - 1] for rank in (1, 2, math.ceil(n / 2), n)]
        expected = [rows.statistics.entropy(), 1 / rows.statistics.mass, beta, tempered, weights[0]]
        expected = np.array([*expected, *lemma, *ranks], dtype=np.float64)
        np.testing.assert_allclose(
            computed, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=str(setting)
        )


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**tiny_models.SETTINGS)).eval()
    tokens = torch.randint(32, 127, (256,))
    return sharpmax.diagnose(
        model, tokens, [32, 64, 128], tokenizer=tiny_models.tokenizer(), examples=3
    )


def _full_row(model_row: ExampleRow, beta: float) -> float:
    """The weight of the largest key of an example at a beta that is recorded."""
    return math.exp(-model_row.log_mass[BETAS.index(beta)])


@in_chromium
def test_weights_between_recorded_betas(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    cases, expected = [], []
    for _ in range(30):
        logits = random.normal(scale=random.uniform(0.5, 4), size=400)
        rows, gaps = Rows(logits), np.sort(logits - logits.max())[::-1]
        masses = [np.exp(beta * gaps).sum() for beta in BETAS]
        means = [gaps @ np.exp(b * gaps) / m for b, m in zip(BETAS, masses, strict=True)]
        beta = float(2 ** random.uniform(-0.5, 7))
        example = {"keys": [{"gap": gap} for gap in gaps[:8]], "mean_gap": means}
        cases.append([{**example, "log_mass": np.log(masses).tolist()}, list(BETAS), beta])
        expected.append([np.exp(beta * gaps).sum(), float(rows.tempered(np.array(beta))[0])])
    code = "(given) => { const x = temperExample(...given); return [x.mass, x.entropy]; }"
    found = np.array(_evaluate(code, cases, tmp_path))
    mass, entropy = np.array(expected).T
    np.testing.assert_allclose(found[:, 0], mass, rtol=1e-2)
    np.testing.assert_allclose(found[:, 1], entropy, atol=5e-2)


def test_examples_are_the_largest_weights(diagnosis: Diagnosis) -> None:
    heads = {(head.layer, head.head) for head in diagnosis.heads}
    assert {(row.layer, row.head) for row in diagnosis.examples} == heads
    assert len(diagnosis.examples) == 3 * len(heads)
    for row in diagnosis.examples:
        assert row.position < 128
        assert row.visible == row.position + 1
        assert len(row.text) == 1
        gaps = [key.gap for key in row.keys]
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[0] == 0
        assert sum(math.exp(gap - row.log_mass[1]) for gap in gaps) <= 1 + 1e-5
    # The last row of the longest length is one of the measured ones.
    last = max(row.position for row in diagnosis.examples)
    assert last == 127
    again = Diagnosis.from_dict(diagnosis.to_dict())
    assert again == diagnosis
    assert "examples" not in dataclasses.replace(diagnosis, examples=()).to_dict()


def test_examples_of_one_row_agree_with_the_model() -> None:
    torch.manual_seed(0)
    config = hf.LlamaConfig(**tiny_models.SETTINGS, attn_implementation="eager")
    model = hf.LlamaForCausalLM(config).eval()
    tokens = torch.randint(32, 127, (64,))
    (row, *_) = sharpmax.diagnose(model, tokens, [32, 64], examples=1).examples
    with torch.no_grad():
        weights = model(tokens[None], output_attentions=True).attentions[0][0, 0, -1]
    best = torch.topk(weights, len(row.keys))
    assert [key.position for key in row.keys] == best.indices.tolist()
    own = [math.exp(key.gap - row.log_mass[BETAS.index(1.0)]) for key in row.keys]
    assert own == pytest.approx(best.values.tolist(), rel=1e-4)
    assert _full_row(row, 1.0) == pytest.approx(float(weights.max()), rel=1e-4)


def test_page_fetches_nothing(tmp_path: Path, diagnosis: Diagnosis) -> None:
    for given in (None, MIXED, diagnosis):
        page = explorer_html(given)
        assert "default-src 'none'" in page
        # Nothing but the icon and the name of a namespace looks like an address.
        assert re.findall(r"(?:src|href)=\"([^\"]*)\"", page) == ["data:,"]
        assert set(re.findall(r"https?://[^\s\"']+", page)) <= {"http://www.w3.org/2000/svg"}
        assert "import " not in page.split('<script type="module">')[1]
    hostile = dataclasses.replace(MIXED, model_name="</script><script>alert(1)</script>")
    page = explorer_html(hostile)
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    assert len(read(write_explorer(tmp_path / "new" / "page.html")).all("script")) == 2


@in_chromium
def test_page_in_a_browser(tmp_path: Path, diagnosis: Diagnosis) -> None:
    path = write_explorer(tmp_path / "page.html", diagnosis)
    dom = _dom(path, "#n=1048576&spread=5&rule=EntropyTarget&target=1.5&theme=dark")
    assert 'data-theme="dark"' in dom
    assert "At 1,048,576 items, plain softmax" in dom
    written = "policy = sharpmax.policies.<wbr>EntropyTarget(target=1.5, limit=1000000)"
    assert written in dom
    assert "<dd>13.213 → 1.500" in dom
    assert dom.count('role="gridcell"') == len(diagnosis.heads)
    assert dom.count('class="example"') == 3
    assert "NaN" not in dom.split('<script type="application/json"')[0]
    # A parameter that the library refuses is refused here.
    dom = _dom(path, "#rule=Monotone&entropies=3,1")
    assert "entropies: expected increasing numbers" in dom


@in_chromium
def test_keyboard_on_a_phone(tmp_path: Path, diagnosis: Diagnosis) -> None:
    place = Path(__file__).parents[2] / "scripts/time_explorer.py"
    path = write_explorer(tmp_path / "page.html", diagnosis)
    with runpy.run_path(str(place))["Browser"](str(tmp_path / "profile")) as browser:

        def evaluate(code: str, wait: int = 500) -> Any:
            """What JavaScript gives once the page has drawn everything again."""
            code = f"new Promise((done) => setTimeout(() => done({code}), {wait}))"
            options = {"awaitPromise": True, "returnByValue": True}
            return browser.call("Runtime.evaluate", expression=code, **options)["result"]["value"]

        def press(*keys: str) -> None:
            for key in keys:
                code = {"Tab": 9, "End": 35, "ArrowRight": 39, "ArrowDown": 40}[key]
                event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
                browser.call("Input.dispatchKeyEvent", type="rawKeyDown", **event)
                browser.call("Input.dispatchKeyEvent", type="keyUp", **event)

        size = {"width": 390, "height": 844, "deviceScaleFactor": 3, "mobile": True}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        browser.call("Page.navigate", url=f"{path.as_uri()}#n=64")
        assert evaluate("document.documentElement.scrollWidth") == 390
        press("Tab", "Tab", "Tab", "End")
        assert evaluate("document.activeElement.getAttribute('aria-label')") == "Items n"
        assert evaluate("document.activeElement.matches(':focus-visible')")
        assert evaluate("sentence.textContent").startswith("At 1,048,576 items")
        # What is not on the screen has followed.
        assert evaluate("rules.querySelectorAll('td')[2].textContent") == "13.21"
        while not evaluate("document.activeElement.title", 0):
            press("Tab")
            assert evaluate("document.activeElement !== document.body", 0), "no way to the map"
        press("ArrowDown", "ArrowRight")
        assert evaluate("document.activeElement.title").startswith("layer 1, head 1")
        assert evaluate("head.textContent").startswith("Layer 1, head 1")
        # A touch shows the curves, wherever they are.
        evaluate("scrollTo(0, map.getBoundingClientRect().bottom + scrollY - innerHeight) ?? 0")
        assert evaluate("head.getBoundingClientRect().top > innerHeight - 100")
        evaluate("map.querySelectorAll('button')[1].click() ?? 0")
        assert evaluate("head.textContent").startswith("Layer 0, head 1")
        assert evaluate("Math.abs(head.getBoundingClientRect().top) < 100")
