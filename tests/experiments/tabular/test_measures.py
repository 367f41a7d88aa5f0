"""Measures agree with scikit-learn's, and calibration undoes a wrong output temperature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics

from experiments.tabular.measures import area_under_curve, calibrated_loss, log_loss, measure


def made(classes: int = 3, rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(rows, classes)) * 1.5
    chosen = [generator.choice(classes, p=p) for p in softmax(logits, axis=1)]
    return logits, np.array(chosen)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_measures_agree_with_scikit_learn(classes: int) -> None:
    logits, truth = made(classes)
    p = softmax(logits, axis=1)
    found = measure(logits, truth)
    expected = metrics.roc_auc_score(truth, p[:, 1] if classes == 2 else p, multi_class="ovr")
    assert found["auc"] == pytest.approx(expected)
    assert found["loss"] == pytest.approx(metrics.log_loss(truth, p))
    assert found["accuracy"] == metrics.accuracy_score(truth, p.argmax(1))


def test_a_fitted_temperature_undoes_overconfidence_and_nothing_else() -> None:
    logits, truth = made()
    true = log_loss(logits, truth)
    assert log_loss(4 * logits, truth) > true + 0.5
    assert calibrated_loss(4 * logits, truth) == pytest.approx(
        calibrated_loss(logits, truth), abs=1e-4
    )
    assert calibrated_loss(logits, truth) == pytest.approx(true, abs=0.02)


def test_a_class_that_no_row_has_does_not_count() -> None:
    logits, truth = made(3)
    keep = truth < 2
    scores = softmax(logits[keep], axis=1)
    both = [metrics.roc_auc_score(truth[keep] == c, scores[:, c]) for c in (0, 1)]
    assert area_under_curve(truth[keep], scores) == pytest.approx(np.mean(both))
