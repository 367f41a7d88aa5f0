"""Find the weights that a temperature or a gain of heads can be multiplied into."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sharpmax._attention import Problem, SinkRole, masked_below
from sharpmax.models import _model_families as families
from sharpmax.models._way import Layer, is_spread
from sharpmax.policies import Form, Policy

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.floating]]


class Obstacle(Exception):  # noqa: N818  (never leaves the room)
    """Why something cannot be folded, and what is possible instead."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(reason)
        self.reason, self.instead = reason, instead


class Seen(NamedTuple):
    """What a layer passes to its attention."""

    heads: int
    width: int  # of a query
    softcap: bool
    bias: bool
    sink: bool

    @staticmethod
    def of(problem: Problem) -> Seen:
        mask, bias = problem.attn_mask, False
        if mask is not None and mask.dtype != torch.bool:
            bias = bool(((mask != 0) & (mask > masked_below(mask.dtype))).any())
        heads, width = problem.query.shape[1], problem.query.shape[3]
        return Seen(heads, width, problem.softcap > 0, bias, problem.sink is not None)


@dataclass(frozen=True, eq=False)
class Scaling:
    """A parameter of a model, and the factors that it is multiplied by."""

    name: str
    parameter: nn.Parameter
    factors: Tensor  # in double precision; broadcast against the parameter

    @torch.no_grad()
    def apply(self) -> Tensor:
        """Multiply the parameter, rounding once, and return what it was."""
        before = self.parameter.detach().clone()
        self.parameter.copy_(self.parameter.double() * self.factors.to(self.parameter.device))
        return before


_KEEP = "keep it in sharpmax.sharpen"
_FIRST = "fold before quantising, sharding or adding adapters, or merge the adapters first"


def is_constant(policy: Policy) -> bool:
    """Tell whether a policy gives all rows of a head the same temperature."""
    form = policy.kernel_form()
    return form is not None and form.form == Form.CONSTANT


def constant_betas(policy: Policy, heads: int) -> Numbers:
    """Return one inverse temperature per head, or raise an obstacle if rows differ."""
    form = policy.kernel_form()
    if form is None or not is_constant(policy):
        raise Obstacle(
            f"{type(policy).__name__} gives each row its own temperature, and weights are the same "
            "for all rows",
            f"calibrate the family 'constant', or {_KEEP}",
        )
    column = form.columns[0]
    plain = column.detach().cpu().numpy() if isinstance(column, Tensor) else column
    return np.broadcast_to(np.asarray(plain, dtype=np.float64), (heads,))


class Places:
    """Where the attention layers of a model take factors."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        every = (id(each) for _, each in model.named_parameters(remove_duplicate=False))
        self._uses = Counter(every)

    def of_betas(
        self, layer: Layer, seen: Seen, betas: Numbers, sink_role: SinkRole
    ) -> list[Scaling]:
        """Return what multiplies the logits of each head by its inverse temperature."""
        gains_fold = f"gains can be folded; for temperatures, {_KEEP}"
        if seen.softcap:
            raise Obstacle("its soft cap acts before the temperature", gains_fold)
        if seen.bias:
            raise Obstacle("its position bias is not scaled with the queries", gains_fold)
        each = torch.from_numpy(np.repeat(betas, seen.width))
        found: list[Scaling] = []
        if (norm := families.query_norm(layer.module)) is not None:
            name = f"{layer.name}.{norm[0]}"
            weight = getattr(norm[1], "weight", None)
            if weight is None or weight.numel() != len(each):
                raise Obstacle(f"{norm[0]} treats the queries of all heads alike", gains_fold)
            found += self._scalings(name, norm[1], each.reshape(weight.shape))
        else:
            name, projection = self._query_projection(layer)
            last, axis = name.rpartition(".")[2], 1 if families.is_transposed(projection) else 0
            rows = projection.weight.shape[axis]
            factors = torch.ones(rows, dtype=torch.float64)
            if last in families.INTERLEAVED_PROJECTIONS and rows == 3 * len(each):
                factors.view(seen.heads, 3, seen.width)[:, 0] = each.view(seen.heads, -1)
            elif last in families.STACKED_PROJECTIONS and rows > len(each):
                factors[: len(each)] = each
            elif last in families.QUERY_PROJECTIONS and rows == len(each):
                factors = each
            else:
                raise Obstacle(
                    f"{last} has {rows} outputs, which do not fit {seen.heads} queries of "
                    f"{seen.width}",
                    gains_fold,
                )
            wide = factors[None] if axis else factors[:, None]
            found += self._scalings(name, projection, wide)
        if seen.sink and sink_role == "key":
            sinks = getattr(layer.module, "sinks", None)
            if sinks is None or sinks.numel() != seen.heads:
                raise Obstacle("its sinks are not one parameter per head", gains_fold)
            found.append(Scaling(f"{layer.name}.sinks", sinks, torch.from_numpy(betas.copy())))
        return self._checked(found)

    def of_gains(self, layer: Layer, gains: Numbers) -> list[Scaling]:
        """Return what multiplies the output of each head by its gain."""
        for norm in families.OUTPUT_NORMS:
            if isinstance(getattr(layer.module, norm, None), nn.Module):
                raise Obstacle(f"{norm} normalises the outputs of the heads", _KEEP)
        name = families.output_projection(self.model, layer.name)
        if name is None:
            raise Obstacle("no output projection was found", _KEEP)
        projection = self._plain(name)
        axis = 0 if families.is_transposed(projection) else 1
        width, rest = divmod(projection.weight.shape[axis], len(gains))
        if rest:
            inputs = projection.weight.shape[axis]
            raise Obstacle(f"{name} has {inputs} inputs for {len(gains)} heads", _KEEP)
        factors = torch.from_numpy(np.repeat(gains, width))
        wide = factors[None] if axis else factors[:, None]
        weight: Any = projection.weight  # its bias is added after the gains
        return self._checked([Scaling(f"{name}.weight", weight, wide)])

    def _query_projection(self, layer: Layer) -> tuple[str, Any]:
        known = (
            *families.QUERY_PROJECTIONS,
            *families.STACKED_PROJECTIONS,
            *families.INTERLEAVED_PROJECTIONS,
        )
        for child in known:
            if isinstance(getattr(layer.module, child, None), nn.Module):
                name = f"{layer.name}.{child}"
                return name, self._plain(name)
        raise Obstacle("no query projection was found", f"gains may be folded; {_KEEP}")

    def _plain(self, name: str) -> Any:
        """Return a projection whose weights are numbers that can be multiplied."""
        module = self.model.get_submodule(name)
        weight = getattr(module, "weight", None)
        if not families.is_projection(module) or weight is None or weight.ndim != 2:
            raise Obstacle(f"{name} is a {type(module).__name__}, not a plain projection", _FIRST)
        return module

    def _scalings(self, name: str, module: nn.Module, factors: Tensor) -> list[Scaling]:
        """Scale the weight of a module, and its bias if it has one."""
        weight: Any = module.weight
        found = [Scaling(f"{name}.weight", weight, factors)]
        if isinstance(bias := getattr(module, "bias", None), nn.Parameter):
            found.append(Scaling(f"{name}.bias", bias, factors.reshape(bias.shape)))
        return found

    def _checked(self, found: list[Scaling]) -> list[Scaling]:
        for each in found:
            weight = each.parameter
            plain = type(weight) is nn.Parameter and weight.is_floating_point()
            if not plain or weight.is_meta or is_spread(weight):
                raise Obstacle(f"{each.name} is quantised, sharded or offloaded", _FIRST)
            if self._uses[id(weight)] > 1:
                raise Obstacle(f"{each.name} is shared with another layer", _KEEP)
        return found
