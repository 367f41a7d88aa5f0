"""Let a row attend to nothing: softmax with one more in the denominator."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from sharpmax.normalisers._normaliser import Normaliser, masked_softmax


class OffByOne(Normaliser):
    """exp(e_i) / (1 + sum exp(e_j)): softmax with one more key, of logit 0 and without a value.

    Rows sum to less than one. It does not escape dispersion: every weight is below that of
    softmax. It offers a way to attend to nothing. Miller, "Attention is off by one" (2023).

    Example:
        >>> import torch
        >>> OffByOne().weights(torch.tensor([0.0, 2.0]).log1p())
        tensor([0.2000, 0.6000])
    """

    normalised = False

    def weigh(self, logits: Tensor, visible: Tensor) -> Tensor:
        with_nothing = masked_softmax(F.pad(logits, (0, 1)), F.pad(visible, (0, 1), value=True))
        return with_nothing[..., :-1]
