"""Wrap in-context learners for tables, such as TabPFN, with scikit-learn's interface."""

# The extra is asked for before anything of it is imported.
# ruff: noqa: E402

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Self

from sharpmax._extras import require

require("sklearn", extra="tabular", what="sharpmax.tabular")

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted
from torch import nn

from sharpmax.models import CannotSharpenError, sharpen
from sharpmax.policies import LogLength, Policy

__all__ = ["SharpTabPFN"]


class SharpTabPFN(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # without types
    """Predict with a TabPFN-style classifier whose attention stays sharp on larger tables.

    The classifier holds a PyTorch model that attends to the rows of the training table. While it
    predicts, its attention is sharpened by a policy; its weights do not change. The default policy,
    `LogLength`, leaves tables alone up to the size that the model was trained on.

    Whether this helps depends on the model and the table: see `experiments/tabular`.

    Args:
        classifier: a classifier that you have installed, such as `tabpfn.TabPFNClassifier()`.
        policy: how attention is sharpened; None takes `LogLength(train_length=train_length)`.
        train_length: rows per table in the training of the model, for the default policy. 1,024 is
            that of TabPFN v1.

    Attributes:
        classifier_: the fitted clone of `classifier`.
        classes_: the classes that it saw.

    Example:
        >>> from sklearn.base import clone
        >>> from sklearn.linear_model import LogisticRegression
        >>> wrapped = SharpTabPFN(LogisticRegression(), train_length=500)
        >>> clone(wrapped).get_params()["train_length"]
        500
    """

    def __init__(
        self, classifier: Any, *, policy: Policy | None = None, train_length: int = 1024
    ) -> None:
        self.classifier = classifier
        self.policy = policy
        self.train_length = train_length

    def fit(self, X: Any, y: Any, **options: Any) -> Self:
        """Fit a clone of the classifier.

        Args:
            X: features, [rows, features].
            y: classes.
            **options: what the classifier's own `fit` takes. TabPFN v1 wants
                `overwrite_warning=True` above 1,024 rows.

        Returns:
            The classifier itself.
        """
        self.classifier_ = clone(self.classifier).fit(X, y, **options)
        self.classes_ = self.classifier_.classes_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.classifier_, name):
                setattr(self, name, getattr(self.classifier_, name))
        return self

    def predict_proba(self, X: Any) -> Any:
        """Predict the probability of each class with sharpened attention.

        Args:
            X: features, [rows, features].

        Returns:
            Probabilities, [rows, classes].

        Raises:
            CannotSharpenError: the classifier holds no PyTorch model, or none that attends.
        """
        check_is_fitted(self)
        models = list(_modules(self.classifier_))
        if not models:
            raise CannotSharpenError(
                f"{type(self.classifier_).__name__}: expected a fitted classifier that holds a "
                "PyTorch model, found none"
            )
        policy = self.policy or LogLength(train_length=self.train_length)
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(sharpen(model, policy))
            return self.classifier_.predict_proba(X)

    def predict(self, X: Any) -> Any:
        """Predict the most probable class of each row with sharpened attention."""
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def __sklearn_tags__(self) -> Any:
        return get_tags(self.classifier)


def _modules(holder: Any, depth: int = 3, seen: set[int] | None = None) -> Iterator[nn.Module]:
    """Yield the modules that an object holds, in attributes, lists, tuples and parts of its own.

    TabPFN 0.1 keeps its model in the tuple `model`, later versions in `model_`, `models_` or an
    executor.
    """
    seen = set() if seen is None else seen
    if id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, nn.Module):
        yield holder
    elif depth:
        held = vars(holder).values() if hasattr(holder, "__dict__") else ()
        for each in holder if isinstance(holder, list | tuple) else held:
            if isinstance(each, nn.Module | list | tuple) or hasattr(each, "__dict__"):
                yield from _modules(each, depth - 1, seen)
