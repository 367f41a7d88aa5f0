"""The model of the paper for max retrieval, many seeds at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.max_retrieval.task import CLASSES
from sharpmax.normalisers import Normaliser, Softmax

__all__ = ["Heads"]


class Heads(nn.Module):
    """A stack of independent models, one per seed, each a single attention head between three MLPs.

    Two-layer MLPs with GELU encode the items, [priority, class], and the query; a head with
    projections Q, K and V attends from the query to the items; a two-layer MLP turns its output
    into scores of the classes. The first axis of every weight runs over seeds, and nothing mixes
    seeds.

    The last layer of the items' MLP, K and V are linear, so with one query they are applied to the
    query, e_i = (Q y)·(K W h_i) = (W' K' Q y)·h_i, and to the mixture, sum_i a_i V W h_i =
    V W (sum_i a_i h_i), rather than to each of n items. That layer has no bias, because one would
    change neither the weights nor what the output's MLP can express.

    Args:
        seeds: One seed per model of the stack.
        normaliser: Turns logits into weights, with the models of the stack as its heads; None is
            softmax.
        width: Width of all layers.
    """

    def __init__(
        self, seeds: Sequence[int], normaliser: Normaliser | None = None, width: int = 128
    ) -> None:
        super().__init__()
        self.seeds = tuple(seeds)
        self.normaliser = Softmax() if normaliser is None else normaliser
        self.width = width
        generators = [torch.Generator().manual_seed(seed) for seed in self.seeds]

        def weight(rows: int, columns: int) -> nn.Parameter:
            draws = [torch.randn(rows, columns, generator=generator) for generator in generators]
            return nn.Parameter(torch.stack(draws) / math.sqrt(rows))

        def bias(columns: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(len(self.seeds), 1, columns))

        self.priority_weight = weight(1, width)
        self.class_weight = weight(CLASSES, width)
        self.items_bias = bias(width)
        self.items_out = weight(width, width)
        self.query_in = weight(1, width)
        self.query_bias = bias(width)
        self.query_out = weight(width, width)
        self.query_out_bias = bias(width)
        self.q = weight(width, width * self.normaliser.maps)
        self.k = weight(width, width)
        self.v = weight(width, width)
        self.output_in = weight(width, width)
        self.output_bias = bias(width)
        self.output_out = weight(width, CLASSES)
        self.output_out_bias = bias(CLASSES)

    def hidden(self, priorities: Tensor, classes: Tensor) -> Tensor:
        """Return the first layer of the items: [seeds, sets, items, width].

        Args:
            priorities: [seeds or 1, sets, items].
            classes: The same shape.
        """
        sets, items = priorities.shape[-2:]
        if not torch.is_grad_enabled() and len(self.seeds) == 1:
            # Faster, but its derivative is not.
            of_class = F.embedding(classes[0].long(), self.class_weight[0] + self.items_bias[0])
            of_class.addcmul_(priorities[0].unsqueeze(-1), self.priority_weight[0])
            return F.gelu(of_class).unsqueeze(0)
        features = torch.cat(
            (priorities.unsqueeze(-1), F.one_hot(classes.long(), CLASSES).to(priorities)), -1
        )
        weight = torch.cat((self.priority_weight, self.class_weight), 1)
        flat = features.flatten(1, 2).expand(len(self.seeds), -1, -1)
        hidden = F.gelu(torch.baddbmm(self.items_bias, flat, weight))
        return hidden.reshape(len(self.seeds), sets, items, self.width)

    def probes(self, queries: Tensor) -> Tensor:
        """Return the vectors that are multiplied with hidden items: [seeds, sets, maps, width].

        Args:
            queries: [seeds or 1, sets].
        """
        queries = queries.unsqueeze(-1).expand(len(self.seeds), -1, -1)
        hidden = F.gelu(self.query_bias + queries * self.query_in)
        encoded = torch.baddbmm(self.query_out_bias, hidden, self.query_out)
        stack, maps = len(self.seeds), self.normaliser.maps
        asked = torch.bmm(encoded, self.q).reshape(stack, -1, self.width)
        probes = torch.bmm(torch.bmm(asked, self.k.mT), self.items_out.mT)
        return probes.reshape(stack, -1, maps, self.width) / math.sqrt(self.width)

    def logits(self, hidden: Tensor, probes: Tensor) -> Tensor:
        """Return the logits of the items, [seeds, sets, maps, items]."""
        return (hidden.unsqueeze(2) * probes.unsqueeze(3)).sum(-1)

    def scores(self, mixture: Tensor) -> Tensor:
        """Return the scores of the classes, [seeds, sets, classes].

        Args:
            mixture: Weighted sums of hidden items: [seeds, sets, width].
        """
        value = torch.bmm(torch.bmm(mixture, self.items_out), self.v)
        output = F.gelu(torch.baddbmm(self.output_bias, value, self.output_in))
        return torch.baddbmm(self.output_out_bias, output, self.output_out)

    def forward(self, priorities: Tensor, classes: Tensor, queries: Tensor) -> Tensor:
        """Return the scores of the classes, for sets with the same number of items."""
        hidden = self.hidden(priorities, classes)
        probes = self.probes(queries)
        normaliser = self.normaliser
        if _plain(normaliser):
            logits = self.logits(hidden, probes).transpose(0, 1)
            weights = normaliser.weights(logits).transpose(0, 1)
        else:
            # Probes include the scale, and the stack is the axis of the heads.
            query = probes.transpose(0, 1).flatten(1, 2).unsqueeze(2)
            key = hidden.transpose(0, 1).repeat_interleave(normaliser.maps, 1)
            weights = normaliser(query, key, scale=1.0).transpose(0, 1)
        return self.scores(torch.matmul(weights, hidden).squeeze(2))

    def alone(self, index: int) -> Heads:
        """Return the model of one seed as a stack of one.

        Args:
            index: Which of the stack.
        """
        one = copy.deepcopy(self)
        one.seeds = (self.seeds[index],)
        for module in one.modules():
            # The stack is the first axis of every parameter, also of a normaliser.
            for name, parameter in module.named_parameters(recurse=False):
                alone = parameter.detach()[index : index + 1].clone()
                setattr(module, name, nn.Parameter(alone, requires_grad=parameter.requires_grad))
        if getattr(one.normaliser, "heads", None) is not None:
            one.normaliser.heads = 1  # type: ignore[assignment]
        return one


def _plain(normaliser: Normaliser) -> bool:
    """Tell whether weights depend on plain logits alone, which are cheaper to compute here."""
    kind = type(normaliser)
    own = kind.forward is not Normaliser.forward or kind.logits is not Normaliser.logits
    return normaliser.maps == 1 and not own
