"""The way into any PyTorch module: wrap its submodules, and find its calls of attention."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from sharpmax.models._attachment import ATTRIBUTE, Attachment
from sharpmax.models._model_families import Kind, sounds_like_attention
from sharpmax.models._rule import Rule
from sharpmax.models._torch_module.calls import Calls, Held, run
from sharpmax.models._torch_module.hidden import ADVICE, OWN, Watch
from sharpmax.models._way import CannotSharpenError, Layer, Way, evaluation_mode

# Of the modules of torch.nn, only these attend.
_ATTENDING = (
    nn.MultiheadAttention, nn.Transformer, nn.TransformerDecoder, nn.TransformerDecoderLayer,
    nn.TransformerEncoder, nn.TransformerEncoderLayer,
)  # fmt: skip


class TorchModule(Way):
    """A module whose submodules get a class that serves their calls of attention.

    A layer is one call of attention: "blocks.3.attn" is the first one that this module makes in a
    pass through the model, "blocks.3.attn#1" the second. Layers are numbered as they are found.
    """

    def __init__(self, model: nn.Module) -> None:
        # A compiled module calls its original, and is compiled again when that changes.
        self.model: nn.Module = getattr(model, "_orig_mod", model)
        self.layers: list[Layer] = []
        self.complete = False  # whether a pass through the whole model has shown its layers
        self._root = type(self.model).__name__
        self._modules = {n or self._root: each for n, each in self.model.named_modules()}
        if not any(map(_may_attend, self._modules.values())):
            raise CannotSharpenError(f"{self._root}: expected a model with attention, found none")
        self._found: dict[str, list[int]] = {}  # indices of layers, by module
        self._ran: set[str] = set()  # modules that have run in passes through the whole model
        self._running: dict[str, Held] = {}  # those that the present pass has added
        self._told = 0  # how many layers, reachable or not, have been reported
        self._probing = False
        self._originals: dict[str, type] = {}  # classes of the modules that are wrapped now
        self._calls: Calls | None = None
        self._lock = threading.RLock()

    @property
    def identity(self) -> tuple[str, str]:
        return "", self._root

    def probe(self, inputs: Any) -> None:
        """Find the layers by one call of the model, in evaluation mode and without gradients."""
        self._probing = True
        self.attach({}, lambda layer: Attachment(layer.index if layer else -1, Rule()))
        try:
            with evaluation_mode(self.model), torch.no_grad(), torch.random.fork_rng([]):
                call(self.model, inputs)
        finally:
            self.detach()
            self._probing = False
        self.complete = True
        if all(layer.unreachable is not None for layer in self.layers):
            why = "; ".join(f"{each.name}: {each.unreachable}" for each in self.layers)
            raise CannotSharpenError(f"{self._root}: no call of attention can be reached. {why}")

    def attach(
        self,
        attachments: Mapping[int, Attachment],
        adopt: Callable[[Layer | None], Attachment],
    ) -> None:
        def found(held: Held, number: int, heads: int, kind: Kind) -> Attachment:
            with self._lock:
                if number == len(held.attachments):
                    name = f"{held.name}#{number}" if number else held.name
                    layer = self._add(name, kind, heads)
                    self._found.setdefault(held.name, []).append(layer.index)
                    held.attachments.append(adopt(layer))
                return held.attachments[number]

        calls = self._calls = Calls(found, adopt(None), Watch(self._hide), self._has_run)
        classes: dict[type, type] = {}
        for name, module in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                self._hide(name, f"TorchScript cannot be looked into; {ADVICE}")
            elif name == self._root or _may_attend(module):
                held = Held(name, calls, module.__dict__.pop("forward", None), name in self._ran)
                held.attachments = [attachments[index] for index in self._found.get(name, ())]
                module.__dict__[ATTRIBUTE] = held
                kind = self._originals[name] = type(module)
                classes[kind] = classes.get(kind) or _serving(kind)
                module.__class__ = classes[kind]

    def detach(self) -> None:
        while self._originals:
            name, kind = self._originals.popitem()
            module = self._modules[name]
            held: Held = module.__dict__.pop(ATTRIBUTE)
            module.__class__ = kind
            if held.own is not None:
                module.__dict__["forward"] = held.own

    def settle(self) -> None:
        if self._calls is not None:
            self._calls.settle()

    def taken(self) -> str | None:
        found = (name for name, each in self._modules.items() if ATTRIBUTE in each.__dict__)
        return next(found, None)

    def state(self, layer: Layer) -> tuple[str, str | None]:
        return "its own", layer.unreachable or (None if self._originals else "restored")

    def _has_run(self, held: Held) -> None:
        """Note that a module has run; after the whole model, report what cannot be reached."""
        if not held.known:
            self._running[held.name] = held
        if held.name != self._root or not self._running:
            return
        ran, self._running = self._running, {}
        self._ran |= set(ran)
        for name, each in sorted(ran.items()):
            each.known = True
            if name in held.calls.watch.ours and not each.attachments:
                self._hide(name, OWN)
        seen = [layer.name for layer in self.layers]
        for name in sorted(ran, key=len, reverse=True):
            module = self._modules[name]
            if sounds_like_attention(module) and not any(path.startswith(name) for path in seen):
                self._hide(name, f"no call of attention was seen in it; {ADVICE}")
                seen.append(name)
        missing = [each for each in self.layers[self._told :] if each.unreachable]
        nothing = not (self.layers or self.complete)
        self._told, self.complete = len(self.layers), True
        if (missing or nothing) and not self._probing:
            why = "; ".join(f"{each.name}: {each.unreachable}" for each in missing)
            why = why or "no call of attention was seen"
            warnings.warn(f"{self._root}: not reached: {why}", stacklevel=2)

    def _hide(self, name: str, why: str) -> None:
        """Add a layer that cannot be reached, once."""
        with self._lock:
            if not any((each.name, each.unreachable) == (name, why) for each in self.layers):
                self._add(name, "encoder", None, why)

    def _add(self, name: str, kind: Kind, heads: int | None, why: str | None = None) -> Layer:
        module = self._modules[name.split("#")[0]]
        self.layers.append(Layer(len(self.layers), name, module, kind, heads, why))
        return self.layers[-1]


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a model with its arguments: a tuple, a mapping, or one; or let a function call it."""
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return inputs(model) if callable(inputs) else model(inputs)


def _may_attend(module: nn.Module) -> bool:
    of_torch = type(module).__module__.startswith("torch.nn.modules.")
    return not of_torch or isinstance(module, _ATTENDING)


def _serving(kind: Any) -> Any:
    """Return a subclass that runs the forward pass of a kind of module, and serves its calls."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        held: Held = getattr(self, ATTRIBUTE)
        return run(held, held.own or super(made, self).forward, args, kwargs)

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        """Copy the module as it is without us."""
        plain = memo[id(self)] = kind.__new__(kind)
        kept = {name: value for name, value in vars(self).items() if name != ATTRIBUTE}
        plain.__dict__.update(copy.deepcopy(kept, memo))
        return plain

    def refused(*_: Any) -> NoReturn:
        raise CannotSharpenError(
            f"{kind.__name__}: a sharpened module cannot be pickled; save its state_dict(), or "
            "call restore() first"
        )

    forward.__wrapped__ = kind.forward  # type: ignore[attr-defined]  # for its signature
    body: dict[str, Any] = {"forward": forward, "__deepcopy__": copied, "__reduce_ex__": refused}
    # PyTorch's fused layers would bypass us: these attributes switch them off.
    if issubclass(kind, nn.TransformerEncoderLayer):
        body["activation_relu_or_gelu"] = property(lambda _: 0)
    elif issubclass(kind, nn.TransformerEncoder):
        body["use_nested_tensor"] = property(lambda _: False)
    body |= {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made: Any = type(kind)(kind.__name__, (kind,), body)
    return made
