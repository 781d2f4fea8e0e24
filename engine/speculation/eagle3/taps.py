"""The hidden states that pass by in the model's decoder layers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from engine.errors import DraftModelError


class Taps:
    """Holds on to the inputs of some decoder layers during one pass of the model:

        with taps:
            ...                 the pass over T tokens
        states = taps.take()    [T, hidden] of each layer, the model's own tensors

    The hooks are there only inside the `with`: a model that nobody listens to runs as it always
    does.
    """

    def __init__(self, model: nn.Module, layer_ids: Sequence[int]) -> None:
        layers = decoder_layers(model)
        self._layers = [layers[i] for i in layer_ids]
        self._held: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Taps:
        # in the order in which the head wants them, whatever the order of the layers
        self._held = [_NOTHING] * len(self._layers)
        for place, layer in enumerate(self._layers):
            self._hooks.append(
                layer.register_forward_pre_hook(self._holder(place), with_kwargs=True)
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def take(self) -> list[Tensor]:
        """The states of the last pass, once; nothing where there was none since."""
        held, self._held = self._held, []
        return held

    def hold(self, states: list[Tensor]) -> None:
        """Take these for the states of the last pass, which was replayed: no layer was called."""
        self._held = states

    def _holder(self, place: int) -> Any:
        def hold(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states: Tensor = args[0] if args else kwargs["hidden_states"]
            self._held[place] = states[0]

        return hold


_NOTHING = Tensor()


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of a model's decoder layers, whatever its class calls it. Raises DraftModelError
    where there is none."""
    count: int = model.config.num_hidden_layers  # type: ignore[union-attr, assignment]
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise DraftModelError(
        f"{type(model).__name__} keeps its {count} layers in no list: their hidden states cannot "
        "be read.",
        "Use the method draft_model or ngram with this model.",
    )
