"""The computation of an EAGLE-3 head over a paged cache.

Its entry at position p combines the target model's features of that token with the next token, and
predicts the token after that:

    position          p             p + 1         p + 2
    token             x_p           x_p+1         x_p+2
    entry             (f_p, x_p+1)  (f_p+1, x_p+2)
    predicts          x_p+2         x_p+3

    f = fc(three hidden states of the model)            for tokens that the model has computed
    f = the head's own output at the position before    for drafts

    cat(norm(embed(x)), norm(f)) -> attention -> + f -> MLP -> + -> output
                                                               norm -> lm_head: logits

Keys and values of an entry depend only on f and x, so a prompt costs two matmuls and no attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from engine.attention.interface import AttentionOptions, LayerSpec, PagedBackend
from engine.batch.batch import Batch
from engine.errors import DraftModelError
from engine.kernels.linear import Linear
from engine.kernels.ops import rotate
from engine.models.layers.norm import FusedRMSNorm
from engine.models.layers.packing import GatedMLP, PackedLinear
from engine.speculation.eagle3.shape import HeadShape

LAYER = 0
"""The number of the head's only layer in its cache."""


class Entries(NamedTuple):
    """T entries of the head. features[T, hidden]; token_ids[T]: the token after each; positions[T]:
    in the sequence, whatever their slots are."""

    features: Tensor
    token_ids: Tensor
    positions: Tensor


Lookup = Callable[[Tensor], Tensor]


class Eagle3Head(nn.Module):
    """The head's module. `rotary` returns cosines and sines as a transformers module does.
    `lookup`: token ids [T] to the target model's embeddings [T, hidden], if the head has none of
    its own. `target_ids[draft vocabulary]`: the target model's ids of the head's tokens."""

    target_ids: Tensor

    def __init__(
        self,
        shape: HeadShape,
        dtype: torch.dtype,
        rotary: nn.Module,
        activation: Any,
        lookup: Lookup | None,
    ) -> None:
        super().__init__()
        self.shape = shape
        hidden, heads = shape.hidden_size, shape.num_heads * shape.head_dim
        tapped, bias = len(shape.layer_ids) * shape.target_hidden_size, shape.has_attention_bias

        def linear(wide: int, out: int, bias: bool = False) -> Linear:
            return Linear(wide, out, bias=bias, device="cpu", dtype=dtype)

        def norm(width: int) -> FusedRMSNorm:
            return FusedRMSNorm(shape.norm_eps, 0.0, torch.ones(width, dtype=dtype))

        self.input_norm = norm(tapped) if shape.norm_before_fc else nn.Identity()
        self.fc = linear(tapped, hidden)
        self.input_layernorm, self.hidden_norm = norm(hidden), norm(hidden)
        self.q_proj = linear(2 * hidden, heads, bias)
        parts = [linear(2 * hidden, shape.kv_width, bias) for _ in range(2)]
        self.kv_proj = PackedLinear(parts)
        self.o_proj = linear(heads, hidden, bias)
        self.q_norm = norm(shape.head_dim) if shape.has_qk_norm else nn.Identity()
        self.k_norm = norm(shape.head_dim) if shape.has_qk_norm else nn.Identity()
        self.post_attention_layernorm = norm(hidden)
        gate, up = (linear(hidden, shape.intermediate_size) for _ in range(2))
        self.mlp = GatedMLP(gate, up, linear(shape.intermediate_size, hidden), activation)
        self.norm = norm(hidden)
        self.lm_head = linear(hidden, shape.draft_vocab_size)
        self.rotary = rotary
        self.register_buffer("target_ids", torch.arange(shape.draft_vocab_size))
        if shape.owns_embeddings:
            own = torch.empty(shape.vocab_size, hidden, dtype=dtype)
            self.register_buffer("own_embeddings", own)
        # a plain attribute: the model's tensors do not count as the head's
        self._lookup = lookup or self._own_embeddings

    def _own_embeddings(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self.get_buffer("own_embeddings"))

    @property
    def kv_layers(self) -> dict[int, LayerSpec]:
        shape = self.shape
        return {LAYER: LayerSpec(shape.num_kv_heads, shape.head_dim, shape.head_dim)}

    def features(self, states: list[Tensor]) -> Tensor:
        """f[T, hidden] of tokens with the hidden states [T, target hidden] of each tapped layer."""
        result: Tensor = self.fc(self.input_norm(torch.cat(states, dim=-1)))
        return result

    def store(self, entries: Entries, batch: Batch, cache: PagedBackend) -> None:
        """Write keys and values of `entries` to the slots of `batch`."""
        combined, _ = self._combined(entries)
        cache.begin_step(batch)
        cache.write(LAYER, *self._keys_values(combined, self._angles(combined, entries)))

    def forward(self, entries: Entries, batch: Batch, cache: PagedBackend) -> Tensor:
        """The output [T, hidden] at `entries`, which are the tokens of `batch`; their keys and
        values are written to its slots."""
        combined, residual = self._combined(entries)
        angles = self._angles(combined, entries)
        queries = self.q_proj(combined).unflatten(-1, (self.shape.num_heads, -1))
        queries = rotate(self.q_norm(queries), *angles)
        cache.begin_step(batch)
        options = AttentionOptions(scaling=self.shape.head_dim**-0.5)
        keys, values = self._keys_values(combined, angles)
        attended = cache.forward(LAYER, queries, keys, values, options)
        hidden = residual + self.o_proj(attended.flatten(1))
        result: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return result

    def logits(self, output: Tensor) -> Tensor:
        """Logits [T, V] of output[T, hidden] over the model's vocabulary: -inf for what the head
        cannot draft."""
        own = self.lm_head(self.norm(output))
        everything = own.new_full((len(own), self.shape.vocab_size), float("-inf"))
        return everything.index_copy_(1, self.target_ids, own)

    def _combined(self, entries: Entries) -> tuple[Tensor, Tensor]:
        """What attention reads [T, 2 hidden], and what its result is added to [T, hidden]."""
        embedded = self._lookup(entries.token_ids)
        normed = self.hidden_norm(entries.features)
        residual = normed if self.shape.norm_before_residual else entries.features
        return torch.cat([self.input_layernorm(embedded), normed], dim=-1), residual

    def _angles(self, like: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
        cos, sin = self.rotary(like, entries.positions.unsqueeze(0))
        return cos[0].unsqueeze(1), sin[0].unsqueeze(1)

    def _keys_values(
        self, combined: Tensor, angles: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        product = self.kv_proj.product(combined)
        keys, values = product.unflatten(-1, (2, self.shape.num_kv_heads, -1)).unbind(1)
        return rotate(self.k_norm(keys), *angles), values


class Taps:
    """Records the inputs of some decoder layers during one pass of the model:

        with taps:
            ...                 the pass over T tokens
        states = taps.take()    [T, hidden] of each layer, the model's own tensors

    The hooks exist only inside the `with`, so a model without a head runs unchanged.
    """

    def __init__(self, model: nn.Module, layer_ids: Sequence[int]) -> None:
        layers = decoder_layers(model)
        self._layers = [layers[i] for i in layer_ids]
        self._held: list[Tensor] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Taps:
        # in the order in which the head wants them, whatever the order of the layers
        self._held = [Tensor()] * len(self._layers)
        for place, layer in enumerate(self._layers):
            hook = partial(self._hold, place)
            self._hooks.append(layer.register_forward_pre_hook(hook, with_kwargs=True))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def take(self) -> list[Tensor]:
        """The states of the last pass, once; nothing if there was none since."""
        held, self._held = self._held, []
        return held

    def hold(self, states: list[Tensor]) -> None:
        """Use these as the states of the last pass, which was replayed without calling the layers.
        """
        self._held = states

    def _hold(
        self, place: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        states: Tensor = args[0] if args else kwargs["hidden_states"]
        self._held[place] = states[0]


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of a model's decoder layers. Raises DraftModelError if there is none."""
    count: int = model.config.num_hidden_layers  # type: ignore[union-attr, assignment]
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise DraftModelError(
        f"EAGLE-3 cannot read the hidden states of {type(model).__name__}: it has no module list "
        f"with {count} layers.",
        "Set speculative_method to draft_model or ngram.",
    )
