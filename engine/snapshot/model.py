"""The loaded model, in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, in words and numbers.

    `num_lookup_parameters` are those of an input embedding that is not the output layer too: of
    it a step reads the rows of its tokens alone. `num_expert_parameters` are in experts, of which
    a token uses `experts_per_token` out of `num_experts`. `quantization`: how weights of linear
    layers are held ("" for plain numbers). Of `weights_bytes`, `output_bytes` are the output
    layer's, `lookup_bytes` those of the input embedding above, `expert_bytes` those of experts.
    `device_name`: the make of `device`, with its cores where that is the CPU, and with the layers
    that the CPU computes beside a GPU. `num_ranks`: how many compute each layer together;
    `num_stages`: on how many GPUs the layers are, one behind the other.
    """

    name: str
    path: str
    architecture: str
    dtype: str
    device: str
    num_parameters: int
    weights_bytes: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    is_dummy: bool
    has_chat_template: bool
    kernels: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    num_lookup_parameters: int = 0
    num_expert_parameters: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    device_name: str = ""
    quantization: str = ""
    output_bytes: int = 0
    lookup_bytes: int = 0
    expert_bytes: int = 0
    num_ranks: int = 1
    num_stages: int = 1

    @property
    def is_described(self) -> bool:
        """Whether more of it is known than its name, and (as `device`) what serves it."""
        return bool(self.architecture)

    @property
    def num_gpus(self) -> int:
        """That have a part each, of ranks or of stages; 0 on the CPU."""
        return max(self.num_ranks, self.num_stages) if self.device.startswith("cuda") else 0

    @property
    def body_bytes(self) -> int:
        """Of weights that every token of a step is multiplied with."""
        return self.weights_bytes - self.output_bytes - self.lookup_bytes - self.expert_bytes
