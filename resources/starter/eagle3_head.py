"""The EAGLE-3 head in plain torch, as it is trained: whole rows, no cache.

The head guesses the token after next. Its entry at place t is made of the model's hidden states
there and of the token that follows, which is known by then:

    place            t            t+1           t+2
    token           x_t          x_t+1         x_t+2
    head's input    h_t, x_t+1   h_t+1, x_t+2
    it predicts     x_t+2        x_t+3

Drafting goes on from the head's own output in the place of hidden states that nobody has computed.
Training does the same (the paper's training-time test): step j starts from the output of step j - 1
at every place at once, and sees the true entries up to its beginning and its own ones after them.

    Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
    Training-Time Test", arXiv:2503.01840. Names and shapes of the tensors are those of published
    heads (LlamaForCausalLMEagle3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

RMS_NORM_EPS = 1e-6
ROPE_THETA = 10000.0

KeysAndValues = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class HeadShape:
    """The shape of a head. `hidden` is the model's own; `draft_vocab`: tokens that it can draft."""

    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 256
    draft_vocab: int = 1280


class HeadAttention(nn.Module):
    """Attention whose queries, keys and values are made of two vectors side by side."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width = 2 * shape.hidden
        self.q_proj = nn.Linear(width, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(width, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(
        self, x: torch.Tensor, first_place: int, entries: list[KeysAndValues]
    ) -> torch.Tensor:
        """x[B, T, 2 hidden] stands at the places first_place, first_place + 1, ... `entries` holds
        the keys and values of the steps before, [B, heads, T, D]; this step's are added to it."""
        queries, keys = (
            rotated(self._by_head(product), first_place)
            for product in (self.q_proj(x), self.k_proj(x))
        )
        group = self.shape.heads // self.shape.kv_heads
        keys = keys.repeat_interleave(group, dim=1)
        values = self._by_head(self.v_proj(x)).repeat_interleave(group, dim=1)
        entries.append((keys, values))
        (true_keys, true_values), *own = entries
        length = x.shape[1]
        queries = queries * self.shape.head_dim**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = [(queries @ true_keys.mT).masked_fill(later, float("-inf"))]
        scores += [(queries * k).sum(-1, keepdim=True) for k, _ in own]
        weights = torch.cat(scores, dim=-1).softmax(-1)
        result = weights[..., :length] @ true_values
        for i, (_, v) in enumerate(own):
            result = result + weights[..., length + i, None] * v
        return self.o_proj(result.transpose(1, 2).flatten(2))

    def _by_head(self, product: torch.Tensor) -> torch.Tensor:
        """[B, T, heads * D] to [B, heads, T, D]."""
        return product.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)


class HeadMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class HeadLayer(nn.Module):
    """The decoder layer: attention over embeddings and hidden states, then the MLP."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.self_attn = HeadAttention(shape)
        self.mlp = HeadMLP(shape)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=RMS_NORM_EPS)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=RMS_NORM_EPS)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=RMS_NORM_EPS)

    def forward(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        first_place: int,
        entries: list[KeysAndValues],
    ) -> torch.Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(both, first_place, entries)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(nn.Module):
    """A head whose state_dict has the names of published ones; the embeddings are the model's."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)
        self.midlayer = HeadLayer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=RMS_NORM_EPS)
        self.lm_head = nn.Linear(shape.hidden, shape.draft_vocab, bias=False)

    def forward(
        self, states: torch.Tensor, embedded: torch.Tensor, num_steps: int
    ) -> list[torch.Tensor]:
        """What `lm_head` makes logits of, [B, T, hidden], for each of `num_steps` drafts in a row
        from every place.

        states[B, T, 3 hidden]: the model's hidden states of three layers. embedded[B, T +
        num_steps - 1, hidden]: the token after each place, and those after the last.
        """
        length = states.shape[1]
        hidden = self.fc(states)
        entries: list[KeysAndValues] = []
        outputs = []
        for step in range(num_steps):
            tokens = embedded[:, step : step + length]
            hidden = self.midlayer(tokens, hidden, step, entries)
            outputs.append(self.norm(hidden))
        return outputs


def rotated(x: torch.Tensor, first_place: int) -> torch.Tensor:
    """Rotary embedding of x[..., T, D] at the places first_place, first_place + 1, ..."""
    half = x.shape[-1] // 2
    rates = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    places = torch.arange(x.shape[-2], dtype=torch.float32, device=x.device) + first_place
    angles = torch.outer(places, rates)
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
