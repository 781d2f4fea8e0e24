"""A model's output head on its own: final hidden states to logits.

A transformers class is a body (embedding, layers, final norm) and what follows it: the head's
matmul, and in some families logit softcapping or a scale. That part is inside the class's forward.
To call it alone, a stand-in replaces the body and returns hidden states that were computed before:

    forward(ids) = rest(body(ids))              with the stand-in:   rest(states)

So a model's logits can be recomputed from its stored states after its layers were freed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.interface import KVProbe, active
from engine.errors import UnsupportedModelError
from engine.hardware.devices import make_current
from engine.runner.model_runner import compute_one, forward


class Head:
    """The head of `model`, and a hook on its input. `vocab_size`: logits of a row.

    Raises UnsupportedModelError where the class cannot be split like this, which is tested: the
    logits of one token must be the same both ways.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parent, self._name, self._body = _find_body(model)
        self._device = torch.device("cpu")  # until it is seen where the states are
        self._stand_in = _StandIn()
        self._states: Tensor | None = None
        self._hook = self._body.register_forward_hook(self._hold)
        self.vocab_size = self._check()

    def take_states(self) -> Tensor:
        """The body's output [T, hidden] of the last pass, once."""
        states, self._states = self._states, None
        assert states is not None, "no pass was run"
        return states

    @torch.inference_mode()
    def logits(self, states: Tensor) -> Tensor:
        """Logits [R, vocab] of states [R, hidden], as the model itself computes them, on its device
        wherever the states are."""
        make_current(str(self._device))
        states = states.to(self._device)
        self._stand_in.states = states.unsqueeze(0)
        body, self._parent._modules[self._name] = (
            self._parent._modules[self._name],
            self._stand_in,
        )
        try:
            none = torch.zeros(len(states), dtype=torch.int64, device=states.device)
            rows = torch.arange(len(states), device=states.device)
            return forward(self._model, none, none, rows)
        finally:
            self._parent._modules[self._name] = body
            self._stand_in.states = _NOTHING

    def close(self) -> None:
        """Remove the hooks; the model is unchanged then."""
        self._hook.remove()
        self._states = None

    def keep_alone(self) -> None:
        """Free the body: from now on only logits of stored states can be computed, and only one
        matrix [vocab, hidden] is kept."""
        self.close()
        self._body = self._parent._modules[self._name] = self._stand_in

    def _hold(self, module: nn.Module, args: Any, output: Any) -> None:
        self._states = output[0][0]

    @torch.inference_mode()
    def _check(self) -> int:
        """The number of logits; raises if the head does not work."""
        with active(KVProbe()):
            expected = compute_one(self._model)
        states = self.take_states()
        self._device = states.device
        found = self.logits(states)
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
            self.close()
            raise _unsupported(self._model)
        return int(expected.shape[1])


class _StandIn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.states = _NOTHING

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(self.states)


class _Output:
    """What a body of any class returns: the states by name or as the first item, all else None."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: Any) -> Any:
        return (self.last_hidden_state,)[place]


_NOTHING = torch.empty(0)


@torch.inference_mode()
def _find_body(model: nn.Module) -> tuple[nn.Module, str, nn.Module]:
    """(parent, name in it, body): the outermost module that is called in a pass and gives the
    hidden states. In most classes it is `base_model`; a few call its decoder past it."""
    prefix = getattr(model, "base_model_prefix", "")
    if not hasattr(model, prefix):  # Llama 4's is that of its multimodal wrapper
        prefix = "model"
    base = getattr(model, prefix, None)
    if not isinstance(base, nn.Module):
        raise _unsupported(model)
    places = [(model, prefix, base)]
    inner = getattr(base, "decoder", None)
    if isinstance(inner, nn.Module):
        places.append((base, "decoder", inner))
    called: list[nn.Module] = []
    hooks = [
        body.register_forward_hook(lambda module, args, output: called.append(module))
        for _, _, body in places
    ]
    try:
        with active(KVProbe()):
            compute_one(model)
    finally:
        for hook in hooks:
            hook.remove()
    for place in places:
        if place[2] in called:
            return place
    raise _unsupported(model)


def _unsupported(model: nn.Module) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"The LM head of {type(model).__name__} is not recognized.",
        "Evaluation does not support this model; inference does.",
    )
