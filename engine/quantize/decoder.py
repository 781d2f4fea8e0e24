"""Runs a model with only one decoder layer in memory at a time.

    embedding -> [ layer 0 ] -> [ layer 1 ] -> ...
                   in memory      still on disk

The body's own forward runs once per sequence with every layer replaced by one that only records its
arguments: each layer gets the masks, rotary tables and other arguments of its architecture. The
hidden states are then passed from layer to layer here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from engine.errors import UnsupportedModelError
from engine.formats.tensor_reader import TensorReader
from engine.hardware.device_map import DeviceMap
from engine.models.checkpoint import Checkpoint
from engine.models.layers.replacement import list_of_layers
from engine.models.materialise import compute_buffers, freeze_rotary, set_tensor, tensor_of
from engine.models.weight_checks import is_turned
from engine.models.weight_map import Conversion, Placement, WeightMap

Arguments = dict[str, Any]


class Decoder:
    """The layers of a model, computed in float32 on the CPU, one sequence at a time.

    `states` [1, T, H]: the inputs of the next layer, one tensor per sequence.
    """

    def __init__(
        self, checkpoint: Checkpoint, model: nn.Module, weights: WeightMap, reader: TensorReader
    ) -> None:
        self.checkpoint = checkpoint
        self.model = model
        self.states: list[Tensor] = []
        self._weights = weights
        self._reader = reader
        self._path, self.layers = list_of_layers(model)
        self._arguments: list[list[Arguments]] = []  # of each layer, for each sequence
        config: Any = model.config
        config._attn_implementation = "eager"  # the only one that every family computes right
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"

    def start(self, sequences: Sequence[Sequence[int]], check: Callable[[], None]) -> None:
        """Embed the sequences and record the arguments of each layer. Afterwards only the layers'
        small buffers are in memory."""
        self._load_outside(max(len(s) for s in sequences))
        body: Any = self.model.base_model
        self.load_layer(0)
        kept = list(self.layers)
        returns_tuple: list[bool] = []
        catchers = [_Catcher(layer, returns_tuple) for layer in self.layers]
        for index, catcher in enumerate(catchers):
            self.layers[index] = catcher
        try:
            for ids in sequences:
                check()
                body(input_ids=torch.tensor([list(ids)]), use_cache=False)
                self._keep(catchers)
        finally:
            for index, layer in enumerate(kept):
                self.layers[index] = layer
        self._drop(lambda name: not name.startswith(self._path + "."))
        self.drop_layer(0)

    def load_layer(self, index: int) -> nn.Module:
        """The layer's weights from disk, in float32."""
        prefix = f"{self._path}.{index}."
        self._fill(lambda name: name.startswith(prefix))
        return self.layers[index]

    def drop_layer(self, index: int) -> None:
        prefix = f"{self._path}.{index}."
        self._drop(lambda name: name.startswith(prefix))

    def reload(self, name: str, into: Tensor) -> None:
        """Read a parameter's values from disk into `into`."""
        for placement in self._weights.placements:
            if placement.name == name:
                target = self._target(placement, into)
                self._reader.copy_into(placement.info, target)

    def run(self, index: int, sequence: int) -> Tensor:
        """The output [1, T, H] of a layer that is in memory for one sequence's state."""
        output = self.layers[index](self.states[sequence], **self._arguments[index][sequence])
        first = output[0] if isinstance(output, tuple) else output
        return cast(Tensor, first)

    def advance(self, index: int, check: Callable[[], None]) -> None:
        """Replace the states by the layer's outputs."""
        for sequence in range(len(self.states)):
            check()
            self.states[sequence] = self.run(index, sequence)

    def _keep(self, catchers: list[_Catcher]) -> None:
        first = not self._arguments
        if first:
            self._arguments = [[] for _ in catchers]
        for index, catcher in enumerate(catchers):
            arguments = catcher.arguments
            if arguments is None:
                raise UnsupportedModelError(
                    f"Layer {index} of {type(self.model).__name__} was not called by the model.",
                    "Use a method without calibration (rtn, int8, fp8 or nf4).",
                )
            if not first:
                arguments = _shared(arguments, self._arguments[index][0])
            elif index:
                arguments = _shared(arguments, self._arguments[0][0])
            self._arguments[index].append(arguments)
            catcher.arguments = None
        state = catchers[0].hidden
        assert state is not None
        # some bodies embed into a view of their weights: the state must not keep them
        self.states.append(state.clone())
        catchers[0].hidden = None

    def _load_outside(self, length: int) -> None:
        """Embeddings, norms and buffers: all but the layers' parameters, and but the head."""
        head = getattr(self.model, "base_model_prefix", "") + "."
        buffers = {name for name, _ in self.model.named_buffers()}
        layers = self._path + "."
        self._fill(
            lambda name: name in buffers or (name.startswith(head) and not name.startswith(layers))
        )
        compute_buffers(self.model, DeviceMap("cpu"))
        freeze_rotary(self.model, length)

    def _fill(self, is_wanted: Callable[[str], bool]) -> None:
        state = self.model.state_dict(keep_vars=True)
        tied = {t: s for t, s in self._weights.tied.items() if s in self._weights.filled}
        names = {n for n in state if is_wanted(n)}
        names |= {tied[n] for n in names if n in tied}
        for name in names:
            tensor = state[name]
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            set_tensor(self.model, name, torch.empty(tensor.shape, dtype=dtype))
        for placement in self._weights.placements:
            if placement.name in names and placement.name not in tied:
                self._read(placement)
        for conversion in self._weights.conversions:
            if names & conversion.targets & self._weights.filled:
                self._convert(conversion, names)
        for target in names & set(tied):
            set_tensor(self.model, target, self.model.get_parameter(tied[target]))

    def _read(self, placement: Placement) -> None:
        tensor = tensor_of(self.model, placement.name).data
        self._reader.copy_into(placement.info, self._target(placement, tensor))

    def _target(self, placement: Placement, tensor: Tensor) -> Tensor:
        if not placement.part:
            return tensor
        return (tensor.mT if is_turned(self.model, placement.name) else tensor)[placement.part]

    def _convert(self, conversion: Conversion, names: set[str]) -> None:
        for name, value in conversion.compute(self.model, self._reader).items():
            if name in names:
                tensor_of(self.model, name).data.copy_(value)

    def _drop(self, is_unwanted: Callable[[str], bool]) -> None:
        for name, parameter in list(self.model.named_parameters(remove_duplicate=False)):
            if is_unwanted(name):
                set_tensor(self.model, name, torch.empty_like(parameter, device="meta"))


class _Catcher(nn.Module):
    """Replaces a layer: records its arguments and returns its input. returns_tuple: whether the
    layers return their hidden state in a tuple; shared, known once the first layer was called."""

    def __init__(self, original: nn.Module, returns_tuple: list[bool]) -> None:
        super().__init__()
        self.original = original
        self._returns_tuple = returns_tuple
        self.hidden: Tensor | None = None
        self.arguments: Arguments | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # bodies ask a layer for its type of attention
            return getattr(super().__getattr__("original"), name)

    def forward(self, hidden_states: Tensor, *others: Any, **arguments: Any) -> Any:
        if others:
            arguments |= _named(self.original, others)
        if not self._returns_tuple:
            output = self.original(hidden_states.clone(), **arguments)
            self._returns_tuple.append(isinstance(output, tuple))
        self.hidden, self.arguments = hidden_states, arguments
        return (hidden_states,) if self._returns_tuple[0] else hidden_states


def _named(layer: nn.Module, values: tuple[Any, ...]) -> Arguments:
    """Positional arguments after the hidden state by their names in the layer's forward."""
    import inspect

    names = list(inspect.signature(layer.forward).parameters)[1:]
    return dict(zip(names, values, strict=False))


def _shared(new: Any, old: Any) -> Any:
    """`new`, with `old`'s tensors where they are equal: masks and tables are mostly the same for
    all sequences and layers."""
    if isinstance(new, Tensor):
        is_equal = isinstance(old, Tensor) and new.shape == old.shape and new.dtype == old.dtype
        return old if is_equal and torch.equal(new, old) else new
    if isinstance(new, dict):
        known = old if isinstance(old, dict) else {}
        return {key: _shared(value, known.get(key)) for key, value in new.items()}
    if isinstance(new, tuple) and type(new) is tuple:
        before = old if isinstance(old, tuple) and len(old) == len(new) else (None,) * len(new)
        return tuple(_shared(a, b) for a, b in zip(new, before, strict=True))
    return new
