"""Builds an `Assembly`: loads the weights as planned, measures a step, and makes the cache."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from engine.attention import register
from engine.attention.interface import LayerSpec
from engine.config import EngineConfig
from engine.errors import (
    CheckpointError,
    InferdeckError,
    LoadCancelled,
    OutOfMemoryError,
    describe,
    in_one_line,
    is_gpu_fault,
    is_out_of_memory,
    let_go,
)
from engine.hardware import garbage
from engine.hardware.device_map import AUTO
from engine.hardware.devices import is_cuda, make_current
from engine.hardware.machine import free_memory
from engine.hardware.malloc import give_back, keep_freed
from engine.hardware.step_threads import while_loading
from engine.host.assembly import Assembly, make_runner, measuring_runner
from engine.host.description import model_info, with_steps
from engine.host.kv_cache import (
    DTYPES,
    Progress,
    caches_that_fit,
    capture_steps,
    with_layers,
)
from engine.host.resolve import resolve
from engine.host.token_budget import measured_budget, with_largest_step
from engine.memory.plan import plan_memory
from engine.memory.profiling import measure_activations
from engine.models.architecture import config_named, resolve_class
from engine.models.checkpoint import Checkpoint
from engine.models.loader import LoadedModel, LoadRequest, load_model
from engine.models.placement import not_offloadable
from engine.models.smoke_test import check_architecture
from engine.numerics.scheme import scheme_of
from engine.runner.model_runner import probe_kv
from engine.snapshot import MemoryPlan
from engine.speculation.draft_loading import draft_source, load_draft
from engine.text.tokenizer import Tokenizer
from engine.units import bytes_text

Cancelled = Callable[[], bool]

_MOVED_AT_ONCE = 16
"""Of a model's layers, one in so many goes to the CPU where memory was planned too closely."""


def assemble(
    config: EngineConfig,
    progress: Progress = lambda stage, done, total: None,
    cancelled: Cancelled = lambda: False,
) -> Assembly:
    """Load the model of `config` and build its cache. Raises CheckpointError,
    UnsupportedModelError, OutOfMemoryError, ConfigError or LoadCancelled."""
    progress("Reading the model config", 0, 0)
    config, checkpoint = resolve(config)
    return build(config, checkpoint, progress, cancelled)


def build(
    config: EngineConfig, checkpoint: Checkpoint, progress: Progress, cancelled: Cancelled
) -> Assembly:
    """`assemble` for a configuration that is resolved already. With what came of it this thread has
    all the threads of the configuration, however few found a core while it loaded."""
    assert config.num_threads is not None, "resolved"
    try:
        keep_freed()
        register()
        if config.adaptive_threads:
            progress = while_loading(progress, config.num_threads)
        else:
            torch.set_num_threads(config.num_threads)
        make_current(config.device)
        is_dummy = config.load_format == "dummy"
        tokenizer = Tokenizer.from_folder(checkpoint.path, allow_missing=is_dummy)
        return _Builder(config, checkpoint, tokenizer, progress, cancelled).build()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(
            f"Out of memory on {config.device} while loading {checkpoint.name} "
            f"({str(error).partition('. ')[0]}): {_free_text(config)}.",
            "Choose a lower-bit quantization or a smaller model, or close other programs.",
        ) from error
    finally:
        torch.set_num_threads(config.num_threads)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Loads one model. `config` is resolved."""

    config: EngineConfig
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    progress: Progress
    cancelled: Cancelled

    def build(self) -> Assembly:
        """Load the model as planned; where memory does not suffice, with more layers on the CPU."""
        plan = plan_memory(self.checkpoint, self.config)
        while True:
            try:
                return self._follow(plan)
            except (OutOfMemoryError, MemoryError, RuntimeError) as error:
                more = self._more_host_layers(plan)
                if more is None or not is_out_of_memory(error):
                    raise
                problem = error
            let_go(problem)  # frees the partly loaded model, too
            release_memory()
            try:
                plan = plan_memory(self.checkpoint, self.config, host_layers=more)
            except OutOfMemoryError:
                raise problem from None

    def _more_host_layers(self, plan: MemoryPlan) -> int | None:
        """The number of offloaded layers after a plan that ran out of memory: its step was only
        estimated, or other programs have taken memory since. None if this is not to be tried."""
        config = self.config
        is_free = config.gpu_layers == AUTO and is_cuda(config.device)
        if not is_free or config.speculative_method == "eagle3":
            return None
        count: int = self.checkpoint.config.num_hidden_layers
        more = plan.host_layers + max(1, count // _MOVED_AT_ONCE)
        return more if more < count else None

    def _check(self) -> None:
        if self.cancelled():
            raise LoadCancelled("Loading was cancelled.")

    def _follow(self, plan: MemoryPlan) -> Assembly:
        """Load the model as planned, measure it, and make its cache."""
        config, checkpoint = self.config, self.checkpoint
        source = draft_source(config, checkpoint, self.tokenizer, plan.host_layers)
        self._check()
        self.progress("Checking", 0, 0)
        with config_named(checkpoint):
            check_architecture(checkpoint.config, resolve_class(checkpoint), self._check)
            loaded = self._load(plan.host_layers)
        return self._with_cache(loaded, source, plan)

    def _load(self, host_layers: int) -> LoadedModel:
        config, checkpoint = self.config, self.checkpoint
        assert config.max_model_len is not None, "resolved"
        request = LoadRequest(
            checkpoint,
            dtype=DTYPES[config.dtype],
            device=config.device,
            load_format=config.load_format,
            seed=config.seed,
            max_model_len=config.max_model_len,
            host_layers=host_layers,
            scheme=scheme_of(config, checkpoint.quantization, checkpoint.name),
            progress=self.progress,
            cancelled=self.cancelled,
        )
        return load_model(request)

    def _with_cache(
        self, loaded: LoadedModel, source: Checkpoint | None, plan: MemoryPlan
    ) -> Assembly:
        """source: the draft model's checkpoint."""
        config, checkpoint, progress = self.config, self.checkpoint, self.progress
        layers = self._probe(loaded)
        draft = step_bytes = budget = None
        if source is not None:
            draft = load_draft(config, source, checkpoint, loaded.model, progress, self.cancelled)
        if is_cuda(config.device):
            progress("Profiling peak memory", 0, 0)
            step_bytes = self._measured_step(loaded, layers)
        elif config.max_num_batched_tokens is None:
            progress("Timing kernels and prefill steps", 0, 0)
            budget = measured_budget(config, partial(measuring_runner, config, loaded, layers))
            config = config.replace(max_num_batched_tokens=budget.tokens)
        if step_bytes is not None or budget is not None:
            held = dict(loaded.bytes_on)
            held[config.device] += draft.weights_bytes if draft is not None else 0
            measured = plan_memory(
                checkpoint, with_largest_step(config, budget), in_use=held, activations=step_bytes,
                host_layers=loaded.device_map.host_layers,
            )  # fmt: skip
            plan = dataclasses.replace(measured, undivided_model_len=plan.undivided_model_len)
        plan = with_layers(plan, layers, config)
        planned = plan.num_blocks
        cache, proposer, plan = caches_that_fit(config, layers, draft, plan)
        if plan.num_blocks < planned:
            loaded.notices.append(
                f"The KV cache has {plan.num_blocks:,} blocks "
                f"({bytes_text(plan.cache_bytes_in_all)}) instead of {planned:,}: other "
                f"programs are using memory on {config.device}."
            )
        runner = make_runner(loaded, cache, config.device)
        capture_steps(runner, proposer, config, plan, progress)
        info = model_info(config, checkpoint, self.tokenizer, loaded, layers, plan)
        info = dataclasses.replace(info, token_budget=budget)
        # What lives as long as the model need not be looked at in every collection. (After a
        # collection that was only requested, garbage would be kept with it.)
        if garbage.collect():
            gc.freeze()
        give_back()  # what loading took
        return Assembly(
            config=config,
            checkpoint=checkpoint,
            tokenizer=self.tokenizer,
            eos_token_ids=checkpoint.eos_token_ids | self.tokenizer.eos_token_ids,
            loaded=loaded,
            layers=layers,
            plan=plan,
            runner=runner,
            info=with_steps(info, runner, proposer),
            draft=draft,
            proposer=proposer,
            step_bytes=step_bytes,
        )

    def _probe(self, loaded: LoadedModel) -> dict[int, LayerSpec]:
        """The KV spec of each layer, from the model's first pass, which also shows whether its
        class supports CPU offload."""
        try:
            return probe_kv(loaded.model)
        except InferdeckError:
            raise
        except Exception as error:  # whatever a class raises, it is the config's content
            if is_out_of_memory(error) or is_gpu_fault(error):
                raise
            if len(loaded.device_map.devices) > 1:
                raise not_offloadable(loaded.model, describe(error).cause) from error
            raise CheckpointError(
                f"{type(loaded.model).__name__} cannot run with the values in "
                f"{self.checkpoint.path / 'config.json'}: {in_one_line(error)}.",
                "Download config.json again, or choose another model.",
            ) from error
        finally:
            make_current(self.config.device)

    def _measured_step(self, loaded: LoadedModel, layers: dict[int, LayerSpec]) -> int:
        """Measured memory of the largest step on the GPU. Raises OutOfMemoryError if not even the
        step fits."""
        config = self.config
        runner = partial(measuring_runner, config, loaded, layers)
        try:
            return measure_activations(config, self.checkpoint.config.vocab_size, runner)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(
                f"Not enough memory for the weights and the largest step "
                f"({config.step_token_limit:,} tokens): {_free_text(config)}.",
                "Lower max_num_batched_tokens or max_num_seqs, choose a lower-bit quantization, or "
                "close other programs on the GPU.",
            ) from error


def _free_text(config: EngineConfig) -> str:
    free, total = free_memory(config.device)
    return f"{bytes_text(free)} of {bytes_text(total)} free"


def release_memory() -> None:
    """Return freed memory to the system."""
    gc.unfreeze()
    garbage.collect()
    give_back()
