"""Serve the calls of attention of a module: a torch function mode, active in its forward pass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from sharpmax import _attention
from sharpmax._attention import Problem
from sharpmax.models._attachment import Attachment
from sharpmax.models._model_families import Kind
from sharpmax.models._torch_module.flex import FLEX, mask_of
from sharpmax.models._torch_module.hidden import Watch
from sharpmax.policies import Identity

_ATEN = torch.ops.aten.scaled_dot_product_attention.default
_REENTRANT = CheckpointFunction.forward.__code__


class Held:
    """What a wrapped module carries: its name, and the attachments of its calls, in order."""

    def __init__(self, name: str, calls: Calls, own: Any, known: bool) -> None:
        self.name, self.calls = name, calls
        self.known = known  # whether an earlier pass has shown what it does
        self.own = own  # a forward function that was set on the module itself
        self.attachments: list[Attachment] = []
        self.repeats = False  # whether one pass runs the module several times


# Makes the attachment of a module's call that is new, from its number, heads and kind.
Adopt = Callable[[Held, int, int, Kind], Attachment]


class Calls:
    """What all wrapped modules of a model share."""

    def __init__(
        self, adopt: Adopt, default: Attachment, watch: Watch, ran: Callable[[Held], None]
    ) -> None:
        self.adopt = adopt
        self.default = default  # serves new calls in compiled code, until they are adopted
        self.watch = watch  # looks for hidden attention in modules that are not known
        self.ran = ran  # called with each module that has run
        # What compiled code leaves to do: calls to adopt, and problems to show.
        self.new: list[tuple[Held, int, int, Kind]] = []
        self.shown: list[tuple[Held, int, Tensor, Tensor, Tensor | None, float | None]] = []

    def settle(self) -> None:
        """Do what compiled code has left to do."""
        while self.new:
            self.adopt(*self.new.pop(0))
        while self.shown:
            held, number, query, key, mask, scale = self.shown.pop(0)
            call = Call(query, key, key, mask, scale=scale, enable_gqa=True)
            held.attachments[number].show(call.problem())


class Pass:
    """A call of the outermost module of a model, in one thread."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.path: list[Held] = []
        self.counts: dict[str, int] = {}  # calls of attention so far, by module
        self.compiled = torch.compiler.is_compiling()
        self.weights: Any = None  # of the present multi-head attention; False: not wanted


class _Local(threading.local):
    here: Pass | None = None


_LOCAL = _Local()


def run(held: Held, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the forward pass of a wrapped module, and serve its calls of attention."""
    outer = _LOCAL.here
    here = Pass(held.calls) if outer is None or outer.calls is not held.calls else outer
    held.repeats = held.repeats or here.counts.get(held.name, 0) > 0
    here.path.append(held)
    _LOCAL.here = here
    try:
        if outer is not None:
            output = forward(*args, **kwargs)
        else:
            with Serving():
                output = forward(*args, **kwargs)
    finally:
        here.path.pop()
        _LOCAL.here = outer
    if not torch.compiler.is_compiling():
        held.calls.settle()
        held.calls.ran(held)
    return output


class Serving(TorchFunctionMode):
    """Replace the functions of attention within a pass."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        here = _LOCAL.here
        if here is None:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention or func is _ATEN:
            return _serve(here, Call(*args, **kwargs))
        if func is F.multi_head_attention_forward:
            return _multi_head(here, args, kwargs)
        if func is FLEX:
            return _flex(here, func, *args, **kwargs)
        if func is torch._native_multi_head_attention:
            raise NotImplementedError(
                f"{here.path[-1].name}: the fused multi-head attention cannot be sharpened; call "
                "torch.backends.mha.set_fastpath_enabled(False)"
            )
        if torch.compiler.is_compiling():
            if func is Tensor.unflatten:
                # A compiler can follow it only as a method.
                return args[0].unflatten(*args[1:], **kwargs)
            return func(*args, **kwargs)
        if here.path[-1].known:
            return func(*args, **kwargs)
        return here.calls.watch.call(here.path[-1].name, func, args, kwargs)


class Call:
    """A call of attention, with the arguments of PyTorch's own function."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if query.is_nested or key.is_nested:
            raise NotImplementedError(
                "query, key: expected dense tensors, got nested ones, which sharpened attention "
                "does not support; pad them and pass a mask"
            )
        self.one_head = query.ndim == 3  # [batch, length, width]
        if self.one_head:
            query, key, value = (each.unsqueeze(-3) for each in (query, key, value))
            if attn_mask is not None and attn_mask.ndim == 3:
                attn_mask = attn_mask.unsqueeze(-3)
        self.folded = _attention.fold(query, key, value, attn_mask, enable_gqa=enable_gqa)
        self.heads = self.folded.query.shape[1]
        self.dropout, self.is_causal = dropout_p, is_causal
        self.scale, self.enable_gqa = scale, enable_gqa

    def kind(self) -> Kind:
        """Return the kind of layer that this call suggests."""
        query, key, _, mask, *_ = self.folded
        if self.is_causal:
            return "global"
        if query.shape[2] != key.shape[2]:
            return "cross"
        if mask is None or torch.compiler.is_compiling():
            return "encoder"
        seen = mask if mask.dtype == torch.bool else mask > _attention.masked_below(mask.dtype)
        later = seen.new_ones(query.shape[2], key.shape[2]).triu(1)
        return "encoder" if bool((seen & later).any()) else "global"

    def problem(self) -> Problem:
        query, key, value, mask = self.folded[:4]
        return _attention.check(
            query, key, value, attn_mask=mask, is_causal=self.is_causal, alignment="upper_left",
            scale=self.scale, softcap=None, sink=None, sink_role="key", window=None,
            enable_gqa=self.enable_gqa, dropout=self.dropout,
        )  # fmt: skip

    def stock(self, _: Problem | None) -> Tensor:
        query, key, value, mask = self.folded[:4]
        return F.scaled_dot_product_attention(
            query, key, value, mask, self.dropout, self.is_causal,  # type: ignore[arg-type]
            scale=self.scale, enable_gqa=self.enable_gqa,
        )  # fmt: skip

    def unfold(self, output: Tensor) -> Tensor:
        output = self.folded.unfold(output)
        return output.squeeze(-3) if self.one_head else output


def _attachment(here: Pass, heads: int, kind: Callable[[], Kind]) -> Attachment:
    """Return what the present call gets; a new one is adopted at once, or after compiled code."""
    held = here.path[-1]
    number = here.counts.get(held.name, 0)
    here.counts[held.name] = number + 1
    if not torch.compiler.is_compiling():
        _check_recomputation(held)
    if number < len(held.attachments):
        return held.attachments[number]
    if torch.compiler.is_compiling():
        held.calls.new.append((held, number, heads, kind()))
        return held.calls.default
    return held.calls.adopt(held, number, heads, kind())


def _check_recomputation(held: Held) -> None:
    """Refuse checkpoints that would recompute a call without us, or with the rule of another."""
    frame: Any = None if torch.is_grad_enabled() else sys._getframe(1)
    while frame is not None and frame.f_code is not run.__code__:
        if frame.f_code is _REENTRANT:
            raise NotImplementedError(
                f"{held.name}: expected a checkpointed module, got a function that calls attention "
                "itself; checkpoint the module"
            )
        frame = frame.f_back
    if not held.repeats:
        return
    rules = {(id(each.rule.policy), id(each.rule.gain)) for each in held.attachments}
    if len(rules) > 1 and torch._C._current_graph_task_id() != -1:
        raise NotImplementedError(
            f"{held.name}: expected the same policy for all calls of a module that runs several "
            "times and is checkpointed, got several"
        )


def _serve(here: Pass, call: Call) -> Tensor:
    """Serve a call of scaled_dot_product_attention."""
    attachment = _attachment(here, call.heads, call.kind)
    return call.unfold(attachment.attend(call.heads, call.problem, call.stock))


def _multi_head(here: Pass, args: Any, kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """Serve a call of multi_head_attention_forward."""
    if not kwargs["need_weights"]:
        here.weights = False
        output, _ = _PROJECTED(*args, **kwargs)
        return output, None
    here.weights = True
    # PyTorch takes the mask here, not the hint that it is causal.
    hint = kwargs["is_causal"] and kwargs["attn_mask"] is None
    output, _ = _PROJECTED(*args, **{**kwargs, "need_weights": False, "is_causal": hint})
    weights: Tensor = here.weights
    if kwargs["average_attn_weights"]:
        weights = weights.mean(1)
    return output, weights if args[0].ndim == 3 else weights.squeeze(0)


def _between_projections(*args: Any, **kwargs: Any) -> Tensor:
    """Attend within multi-head attention; keep the weights if they are wanted."""
    here = _LOCAL.here
    assert here is not None
    call = Call(*args, **kwargs)
    if not here.weights:
        return _serve(here, call)
    attachment = _attachment(here, call.heads, call.kind)
    problem = call.problem()
    attachment.show(problem)
    weights = F.dropout(attachment.weigh(problem), call.dropout)
    here.weights = weights
    assert problem.value is not None
    return attachment.rule_of(call.heads).scaled(weights @ problem.value)


def _with_own_attention(function: Any) -> Any:
    """Return PyTorch's multi-head attention with ours between its projections.

    The same code with other globals: nothing that PyTorch's own function uses is changed.
    """
    scope = {
        **{name: value for name, value in vars(F).items() if name != "__name__"},
        "scaled_dot_product_attention": _between_projections,
        "has_torch_function": lambda _: False,
        "_check_key_padding_mask": lambda *_: None,  # a compiler cannot follow it
    }
    made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_PROJECTED = _with_own_attention(F.multi_head_attention_forward)


def _flex(
    here: Pass,
    function: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any,
    block_mask: tuple[Any, ...],
    scale: float,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Serve a call of flex_attention, which compiles itself unless something else does."""
    held = here.path[-1]
    attachment = _attachment(here, query.shape[1], lambda: "encoder")
    rule = attachment.rule_of(query.shape[1])
    if attachment.observe is None and rule.is_stock:
        plain: tuple[Tensor, Tensor, Tensor] = function(
            query, key, value, score_mod, block_mask, scale, *rest
        )
        return plain
    mask = mask_of(query, key, score_mod, block_mask)
    call = Call(query, key, value, mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])

    def stock(made: Problem | None) -> Tensor:
        # Not PyTorch's function: compiled code may call it where we would serve it again.
        return _attention.attend(made or call.problem(), Identity())[0]

    if attachment.observe is not None and not here.compiled and torch.compiler.is_compiling():
        # Only flex_attention is compiled: an observer is shown the problem afterwards.
        held.calls.shown.append((held, here.counts[held.name] - 1, query, key, mask, scale))
        output = replace(attachment, observe=None).attend(call.heads, call.problem, stock)
    else:
        output = attachment.attend(call.heads, call.problem, stock)
    # The logarithms of masses and the largest scores would be those of other logits.
    unknown = query.new_full(query.shape[:3], torch.nan, dtype=torch.float32)
    return output, unknown, unknown
