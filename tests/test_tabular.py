"""A classifier that attends to its training rows, with and without sharper attention."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from sharpmax.models import CannotSharpenError
from sharpmax.policies import Constant
from sharpmax.tabular import SharpTabPFN


class Kernel(nn.Module):
    """Attend to rows by their distance: a kernel estimate, whose bandwidth is the temperature."""

    def __init__(self, bandwidth: float) -> None:
        super().__init__()
        self.bandwidth = bandwidth

    def forward(self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        norms = keys.square().sum(1, keepdim=True)
        query = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)[None, None]
        key = torch.cat([2 * keys, -norms], dim=1)[None, None]
        return nn.functional.scaled_dot_product_attention(
            query, key, values[None, None], scale=1.0 / self.bandwidth
        )[0, 0]


class InContext(ClassifierMixin, BaseEstimator):
    """Keep the table in `fit` and attend to it in `predict_proba`; like TabPFN 0.1, in a tuple."""

    def __init__(self, bandwidth: float = 0.1) -> None:
        self.bandwidth = bandwidth

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, self.y_ = np.unique(y, return_inverse=True)
        self.centre_, self.scale_ = X.mean(0), X.std(0) + 1e-9
        self.X_ = X
        self.model_ = (float("inf"), float("inf"), Kernel(self.bandwidth))
        return self

    def predict_proba(self, X):
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        rows, keys = (torch.from_numpy((x - self.centre_) / self.scale_) for x in (X, self.X_))
        values = torch.eye(len(self.classes_), dtype=rows.dtype)[self.y_]
        return self.model_[2](rows, keys, values).numpy()

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(1)]


@parametrize_with_checks([SharpTabPFN(InContext())])
def test_it_passes_the_checks_of_estimators(estimator, check) -> None:
    check(estimator)


def made(rows: int = 400):
    return make_moons(rows, noise=0.2, random_state=0)


def test_up_to_the_trained_size_nothing_changes() -> None:
    x, y = made()
    plain = InContext().fit(x, y).predict_proba(x)
    np.testing.assert_allclose(
        SharpTabPFN(InContext(), train_length=400).fit(x, y).predict_proba(x), plain, rtol=1e-9
    )
    beyond = SharpTabPFN(InContext(), train_length=100).fit(x, y).predict_proba(x)
    assert np.abs(beyond - plain).max() > 0.01


def test_beta_is_the_inverse_of_the_bandwidth() -> None:
    x, y = made()
    narrow = InContext(bandwidth=0.1 / 3).fit(x, y)
    sharp = SharpTabPFN(InContext(bandwidth=0.1), policy=Constant(3.0)).fit(x, y)
    np.testing.assert_allclose(sharp.predict_proba(x), narrow.predict_proba(x), atol=1e-9)
    assert (sharp.predict(x) == narrow.predict(x)).all()


def test_the_classifier_is_left_as_it_was() -> None:
    x, y = made()
    given = InContext()
    sharp = SharpTabPFN(given, policy=Constant(3.0)).fit(x, y)
    before = sharp.classifier_.predict_proba(x)
    sharp.predict_proba(x)
    np.testing.assert_array_equal(sharp.classifier_.predict_proba(x), before)
    assert not hasattr(given, "classes_")
    assert type(sharp.classifier_.model_[2]) is Kernel
    again = pickle.loads(pickle.dumps(clone(sharp).fit(x, y)))
    np.testing.assert_array_equal(again.predict_proba(x), sharp.predict_proba(x))


def test_a_classifier_without_a_model_is_refused() -> None:
    x, y = made()
    fitted = SharpTabPFN(LogisticRegression()).fit(x, y)
    with pytest.raises(
        CannotSharpenError, match="LogisticRegression: expected a fitted classifier"
    ):
        fitted.predict_proba(x)


def test_a_model_may_be_held_by_a_part_of_the_classifier() -> None:
    class Executor:
        def __init__(self, model: nn.Module) -> None:
            self.models = [model]

    class Newer(InContext):
        def fit(self, X, y):
            super().fit(X, y)
            self.executor_ = Executor(self.model_[2])
            del self.model_
            return self

        def predict_proba(self, X):
            self.model_ = (0.0, 0.0, self.executor_.models[0])
            try:
                return super().predict_proba(X)
            finally:
                del self.model_

    x, y = made()
    newer, older = (SharpTabPFN(c, policy=Constant(2.0)) for c in (Newer(), InContext()))
    np.testing.assert_array_equal(
        newer.fit(x, y).predict_proba(x), older.fit(x, y).predict_proba(x)
    )


class Careless(InContext):
    """Forget what scikit-learn asks for: the number of features, and names of attributes."""

    def fit(self, X, y):
        super().fit(X, y)
        self.__dict__.pop("n_features_in_")
        self.given = True
        return self

    def predict_proba(self, X):
        self.n_features_in_ = self.X_.shape[1]
        return super().predict_proba(X)


def failed(estimator: BaseEstimator) -> set[str]:
    found = check_estimator(estimator, on_fail=None, on_skip=None)
    return {each["check_name"] for each in found if each["status"] == "failed"}


def test_it_fails_no_check_that_the_wrapped_classifier_passes() -> None:
    own = failed(Careless())
    assert own
    assert failed(SharpTabPFN(Careless())) <= own
