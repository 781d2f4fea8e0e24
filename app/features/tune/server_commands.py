"""Shared parts of the translations to other servers' options.

Only equivalent options are written; settings without an equivalent are listed, unknown ones too.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from engine.config import SETTINGS, EngineConfig
from engine.hardware.device_map import ALL
from engine.units import precision_name, setting_text


@dataclass(frozen=True, slots=True)
class Facts:
    """Resolved values. `capacity`: tokens in the KV cache; `dtype`: of dtype auto; `host_layers`:
    layers on the CPU."""

    capacity: int | None = None
    dtype: str = ""
    host_layers: int = 0


NO_FACTS = Facts()

UNTRANSLATED = ("model", "device", "num_threads", "adaptive_threads")
"""Not translated: the model is an argument, device and threads belong to the machine."""

VERIFY = "Tuned with Inferdeck: benchmark again on the target server and machine."


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """`text`: for a POSIX shell. `missing`: settings without equivalent. `notes`: differences."""

    server: str
    text: str
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def comments(self) -> str:
        lines = [*self.notes, VERIFY]
        if self.missing:
            lines.insert(0, f"Not supported by {self.server}: {', '.join(self.missing)}.")
        return "\n".join(lines)

    @property
    def as_script(self) -> str:
        """The command, then the notes as comments."""
        comments = "".join(f"# {line}\n" for line in self.comments.splitlines())
        return f"{self.text}\n{comments}"


def without_equivalent(config: EngineConfig, known: Collection[str]) -> tuple[str, ...]:
    """ "Batching (static)" of every setting that was changed and is not among `known`."""
    return tuple(
        f"{setting.label} ({setting_text(getattr(config, name))})"
        for name, setting in SETTINGS.items()
        if name not in known and name not in UNTRANSLATED and is_changed(config, name)
        and (name, getattr(config, name)) != ("gpu_layers", ALL)  # as it is in every server
    )  # fmt: skip


def is_changed(config: EngineConfig, name: str) -> bool:
    return bool(getattr(config, name) != SETTINGS[name].default)


def command_line(words: Sequence[object]) -> str:
    """For a POSIX shell, one option per line."""
    quoted = [shlex.quote(str(word)) for word in words]
    lines: list[str] = []
    for word in quoted:
        if lines and not word.startswith("--"):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)


KV_SETTING = "kv_cache_dtype"
KV_VLLM = {"fp8": "fp8_per_token_head", "int8": "int8_per_token_head"}
KV_SGLANG = {"fp8": "fp8_e4m3"}
KV_TENSORRT_LLM = {"fp8": "fp8"}

STORED = ("auto", "none", "awq", "gptq", "compressed-tensors", "bitsandbytes")
"""Unquantized or stored in the checkpoint: no option needed."""

WEIGHTS_VLLM: Mapping[str, tuple[str, ...]] = {
    "fp8": ("--quantization", "fp8"),
    "nf4": ("--quantization", "bitsandbytes"),
}
WEIGHTS_SGLANG: Mapping[str, tuple[str, ...]] = {
    "int8": ("--torchao-config", "int8wo"),
    "fp8": ("--quantization", "fp8"),
}
WEIGHTS_TENSORRT_LLM: Mapping[str, tuple[str, ...]] = {}
_TORCHAO_GROUPS = (32, 64, 128, 256)
_MAKE = "Save a quantized checkpoint (inferdeck quantize) and serve that folder."

DRAFT_SETTINGS = (
    "speculative_method", "speculative_model", "num_speculative_tokens", "speculative_adaptive",
    "prompt_lookup_min", "prompt_lookup_max",
)  # fmt: skip
DRAFTS_VLLM = {"draft_model": "draft_model", "ngram": "ngram", "eagle3": "eagle3"}
DRAFTS_SGLANG = {"draft_model": "STANDALONE", "ngram": "NGRAM", "eagle3": "EAGLE3"}
DRAFTS_TENSORRT_LLM = {"draft_model": "DraftTarget", "ngram": "NGram"}


def is_drafting(config: EngineConfig) -> bool:
    return config.speculative_method != "off" and config.num_speculative_tokens > 0


def known_drafts(config: EngineConfig, methods: Collection[str]) -> tuple[str, ...]:
    """Speculation settings if the server supports the method or it is off; otherwise they are
    missing."""
    if not is_drafting(config) or config.speculative_method in methods:
        return DRAFT_SETTINGS
    return tuple(name for name in DRAFT_SETTINGS if name != "speculative_method")


@dataclass
class Translation:
    """Translates a configuration to a server's options: `words` of the command, settings `known` to
    the server, and `notes` about differences. `weights`, `kv`, `drafts`: the server's names by
    ours."""

    server: str
    config: EngineConfig
    facts: Facts
    known: list[str]
    weights: Mapping[str, tuple[str, ...]]
    kv: Mapping[str, str]
    drafts: Mapping[str, str]
    words: list[object]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Translate what all servers have in common."""
        if self.kv_name is not None or not self.config.kv_dtype.is_quantized:
            self.known.append(KV_SETTING)
        self.known += known_drafts(self.config, self.drafts)
        self._note_weights()
        self._note_placement()

    def add(self, option: str, name: str, *, always: bool = False) -> None:
        """Add `option` with the value of `name`, if it was changed."""
        value = getattr(self.config, name)
        if value is not None and (always or is_changed(self.config, name)):
            self.words += [option, value]

    def command(self, before: str = "") -> ServerCommand:
        """`before`: lines above the command line."""
        missing = without_equivalent(self.config, self.known)
        text = before + command_line(self.words)
        return ServerCommand(self.server, text, missing, tuple(self.notes))

    @property
    def kv_name(self) -> str | None:
        """The server's name of the KV dtype; None for the model's dtype or an unsupported one."""
        keys, values = self.config.kv_dtype
        return self.kv.get(keys) if keys == values else None

    @property
    def weight_options(self) -> list[object]:
        """Options that quantize the weights on load; none where not supported."""
        method, size = self.config.quantization, self.config.quantization_group_size
        if method == "int4" and self.weights is WEIGHTS_SGLANG and size in _TORCHAO_GROUPS:
            return ["--torchao-config", f"int4wo-{size}"]
        return list(self.weights.get(method, ()))

    @property
    def draft_name(self) -> str | None:
        """The server's name of the speculation method; None where it is off or unsupported."""
        return self.drafts.get(self.config.speculative_method) if is_drafting(self.config) else None

    def _note_weights(self) -> None:
        """Differences of precision, or the alternative."""
        config, method = self.config, self.config.quantization
        name = precision_name(method)
        if config.dtype == "auto" and self.facts.dtype:
            own = precision_name(self.facts.dtype)
            self.notes.append(f"The server resolves dtype auto; Inferdeck uses {own}.")
        self.known.append("quantization_group_size")
        if method in STORED:
            self.known.append("quantization")
        elif not self.weight_options:  # only the method is listed as missing
            self.notes.append(f"{self.server} cannot quantize to {name} at load time. {_MAKE}")
        else:
            self.known.append("quantization")
            self.notes.append(
                f"{name}: the server quantizes differently. Evaluate quality on the server."
            )
            if self.weights is WEIGHTS_VLLM and method == "fp8":
                self.notes.append(
                    "FP8 in vLLM also quantizes activations and requires a GPU with FP8 support."
                )
            if self.weights is WEIGHTS_SGLANG and method == "int4":
                self.notes.append("int4wo uses Inferdeck's group size and requires a GPU.")

    def _note_placement(self) -> None:
        """Differences of speculation, CPU offload and KV precision."""
        config, notes = self.config, self.notes
        if self.draft_name is not None and config.speculative_adaptive:
            label, count = SETTINGS["speculative_adaptive"].label, config.num_speculative_tokens
            notes.append(f"{label}: the server always drafts {count} tokens.")
        if layers := self.facts.host_layers:
            count_text = "1 layer" if layers == 1 else f"{layers} layers"
            notes.append(
                f"CPU offload ({count_text}) is omitted; {self.server} runs all layers on GPUs."
            )
        if self.kv_name is not None and self.kv is not KV_VLLM:
            notes.append(
                "KV scales: per layer on the server (default 1.0), per token and head in "
                "Inferdeck. Evaluate quality on the server."
            )
