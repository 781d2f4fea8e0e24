"""From a configuration to a loaded model with its cache: resolve, plan, load, measure."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from engine.allocator import give_back, keep_freed
from engine.attention import register
from engine.attention.backends import divided, make_backend, staged
from engine.attention.divided import DividedAttention
from engine.attention.interface import LayerSpec, PagedBackend
from engine.attention.staged import StagedAttention
from engine.config import EngineConfig
from engine.device_map import AUTO, CHOICES, stage_starts
from engine.devices import (
    CPU,
    is_cuda,
    make_current,
    rank_devices,
    resolve_device,
    resolve_ranks,
)
from engine.errors import (
    ConfigError,
    DraftModelError,
    OutOfMemoryError,
    UnsupportedModelError,
    describe,
    is_out_of_memory,
    let_go,
)
from engine.graphs import capture_for, most_rows, sizes_for
from engine.kv_dtype import KVWidths
from engine.loading.architecture import resolve_class
from engine.loading.checkpoint import Checkpoint
from engine.loading.loader import LoadedModel, load_model
from engine.machine import default_dtype, free_memory, machine_info
from engine.memory import blocks_of, plan_memory, ranks_beside, shrunk
from engine.model_description import model_info, with_steps
from engine.model_runner import ModelRunner, probe_kv
from engine.parallel.ranks import Ranks, load_ranks
from engine.parallel.runner import ParallelCache
from engine.parallel.share import Share
from engine.parallel.trial import check_division
from engine.profiling import measure_activations
from engine.quantization.scheme import scheme_of
from engine.runners import make_runner
from engine.snapshot import MemoryPlan, ModelInfo
from engine.speculation.draft_loading import Draft, load_draft, make_proposer
from engine.speculation.draft_source import check_draft, check_head
from engine.speculation.proposer import Proposer
from engine.threads.free_cores import while_loading
from engine.tokenization import Tokenizer
from engine.trial import check_architecture

Progress = Callable[[str, int, int], None]
Cancelled = Callable[[], bool]

_MOVED_AT_ONCE = 16
"""Of a model's layers, one in so many goes to the CPU where memory was planned too closely."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class Assembly:
    """A model that is ready to run. `config` has dtype, max_model_len and num_threads resolved.
    `step_bytes`: what its largest step was seen to need on a GPU."""

    config: EngineConfig
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    loaded: LoadedModel
    layers: dict[int, LayerSpec]
    plan: MemoryPlan
    runner: ModelRunner
    info: ModelInfo
    draft: Draft | None = None
    proposer: Proposer | None = None
    step_bytes: int | None = None

    @property
    def weights_bytes(self) -> int:
        """On the device, of the model and of the draft model beside it, measured."""
        own = self.loaded.bytes_on[self.config.device]
        return own + (self.draft.weights_bytes if self.draft else 0)

    @property
    def cache_bytes(self) -> int:
        """On the device."""
        return self.runner.backend.nbytes + (self.proposer.cache_bytes if self.proposer else 0)

    @property
    def host_layers(self) -> int:
        """That the CPU computes beside a GPU; what follows is of these, in RAM."""
        return self.loaded.device_map.host_layers

    @property
    def host_weights_bytes(self) -> int:
        return self.loaded.bytes_on[CPU] if self.host_layers else 0

    @property
    def cpu_weights_bytes(self) -> int | None:
        """That the CPU computes with; None where a GPU computes all."""
        return self.loaded.bytes_on.get(CPU)

    @property
    def host_cache_bytes(self) -> int:
        backend = self.runner.backend
        return backend.host_nbytes if isinstance(backend, DividedAttention) else 0

    @property
    def taken(self) -> dict[str, int]:
        """Bytes of weights and caches on each device; of the CPU's memory also where there are
        none."""
        found = {CPU: self.host_weights_bytes + self.host_cache_bytes}
        found[self.config.device] = self.weights_bytes + self.cache_bytes
        backend = self.runner.backend
        caches = backend.bytes_on if isinstance(backend, ParallelCache | StagedAttention) else {}
        for name in self.config.devices[1:]:
            found[name] = self.loaded.bytes_on[name] + caches.get(name, 0)
        return found

    def drop(self) -> None:
        """Let go of weights and cache; what describes them stays."""
        ranks = self.loaded.ranks
        self.loaded = dataclasses.replace(
            self.loaded, model=nn.Module(), crossing=None, ranks=None
        )
        self.drop_drafting()
        self.draft = None
        self.runner.drop()
        if ranks is not None:
            ranks.close()

    def drop_drafting(self) -> None:
        """Let go of the cache of the draft model and of what was captured of it."""
        if self.proposer is not None:
            self.proposer.drop()
            self.proposer = None


def resolve(config: EngineConfig) -> tuple[EngineConfig, Checkpoint]:
    """Open the checkpoint and settle what the configuration left open. Reads no weights."""
    checkpoint = Checkpoint.open(config.model, dummy=config.load_format == "dummy")
    limit = checkpoint.max_position_embeddings
    length = config.max_model_len or limit
    if limit is not None and length is not None and length > limit:
        raise ConfigError(
            f"max_model_len is {length:,}, but {checkpoint.name} was made for {limit:,} tokens.",
            f"Set max_model_len to {limit:,} or less.",
        )
    scheme_of(config, checkpoint.quantization, checkpoint.name)  # refused before anything is loaded
    machine = machine_info()
    device = resolve_device(config.device)
    if max(config.tensor_parallel_size, config.pipeline_parallel_size) > 1:
        _check_ranks(config, device)
    dtype = config.dtype
    if dtype == "auto":
        dtype = default_dtype(checkpoint.dtype, checkpoint.num_parameters, device)
    return (
        config.replace(
            device=device,
            dtype=dtype,
            max_model_len=length or 4096,
            num_threads=config.num_threads or machine.default_threads,
        ),
        checkpoint,
    )


def _check_ranks(config: EngineConfig, device: str) -> None:
    """Raise ConfigError where there are too few GPUs for as many ranks or stages, or other settings
    do not go together with them."""
    ranks, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    if ranks > 1 and stages > 1:
        raise ConfigError(
            f"tensor_parallel_size is {ranks} and pipeline_parallel_size {stages}: GPUs compute "
            "either each layer together, or some layers each.",
            "Set one of them to 1.",
        )
    name = "tensor_parallel_size" if ranks > 1 else "pipeline_parallel_size"
    if stages > 1 and not is_cuda(device):
        raise ConfigError(
            f"pipeline_parallel_size is {stages}, and the CPU has all layers.",
            "Choose the first of several NVIDIA GPUs as the device, or set it to 1.",
        )
    resolve_ranks(device, max(ranks, stages), name)
    if is_cuda(device) and config.gpu_layers not in CHOICES:
        raise ConfigError(
            f"gpu_layers is {config.gpu_layers}, and {name} {max(ranks, stages)}: a model of which "
            "the CPU computes some layers has the others on one GPU.",
            f'Set gpu_layers to "all", or {name} to 1.',
        )


def assemble(
    config: EngineConfig,
    progress: Progress = lambda stage, done, total: None,
    cancelled: Cancelled = lambda: False,
) -> Assembly:
    """Load the model of `config` and build its cache. Raises CheckpointError,
    UnsupportedModelError, OutOfMemoryError, ConfigError or LoadCancelled."""
    progress("Reading the model's description", 0, 0)
    config, checkpoint = resolve(config)
    return build(config, checkpoint, progress, cancelled)


def build(
    config: EngineConfig, checkpoint: Checkpoint, progress: Progress, cancelled: Cancelled
) -> Assembly:
    """`assemble` for a configuration that is resolved already. With what came of it this thread has
    all the threads of the configuration, however few found a core while it loaded."""
    assert config.num_threads is not None, "resolved"
    try:
        return _build(config, checkpoint, progress, cancelled)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        free, total = free_memory(config.device)
        raise OutOfMemoryError(
            f"The memory of {config.device} ran out while {checkpoint.name} was loaded "
            f"({str(error).partition('. ')[0]}); {free / 2**30:.2f} of {total / 2**30:.2f} GiB "
            "are free.",
            "Choose fewer bits a weight (quantization) or a smaller model, or close other "
            "programs.",
        ) from error
    finally:
        torch.set_num_threads(config.num_threads)


def _build(
    config: EngineConfig, checkpoint: Checkpoint, progress: Progress, cancelled: Cancelled
) -> Assembly:
    keep_freed()
    register()
    assert config.num_threads is not None
    if config.adaptive_threads:
        progress = while_loading(progress, config.num_threads)
    else:
        torch.set_num_threads(config.num_threads)
    make_current(config.device)
    tokenizer = Tokenizer.from_folder(checkpoint.path, allow_missing=config.load_format == "dummy")
    plan = plan_memory(checkpoint, config)
    while True:
        try:
            return _follow(plan, config, checkpoint, tokenizer, progress, cancelled)
        except (OutOfMemoryError, RuntimeError) as error:
            more = _more_host_layers(plan, config, checkpoint)
            if more is None or not is_out_of_memory(error):
                raise
            problem = error
        let_go(problem)  # and of what was loaded so far
        release_memory()
        try:
            plan = plan_memory(checkpoint, config, host_layers=more)
        except OutOfMemoryError:
            raise problem from None


def _more_host_layers(plan: MemoryPlan, config: EngineConfig, checkpoint: Checkpoint) -> int | None:
    """How many layers the CPU gets after a plan for which the memory did not suffice: its step was
    estimated, and others may have taken some since. None where that is not to be tried."""
    is_free = config.gpu_layers == AUTO and is_cuda(config.device)
    is_free = is_free and len(config.devices) == 1
    if not is_free or config.speculative_method == "eagle3":
        return None
    count: int = checkpoint.config.num_hidden_layers
    more = plan.host_layers + max(1, count // _MOVED_AT_ONCE)
    return more if more < count else None


def _follow(
    plan: MemoryPlan,
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    progress: Progress,
    cancelled: Cancelled,
) -> Assembly:
    """Load the model as it was planned, measure, and make its cache."""
    assert config.max_model_len is not None, "resolved before"
    source = draft_source(config, checkpoint, tokenizer, plan.host_layers)
    check_architecture(checkpoint.config, resolve_class(checkpoint))
    loaded = _load(config, checkpoint, plan.host_layers, progress, cancelled)
    try:
        return _with_cache(loaded, source, plan, config, checkpoint, tokenizer, progress, cancelled)
    except BaseException:
        if loaded.ranks is not None:
            loaded.ranks.close()
        raise


def _load(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host_layers: int,
    progress: Progress,
    cancelled: Cancelled,
) -> LoadedModel:
    assert config.max_model_len is not None and config.num_threads is not None, "resolved before"
    load = functools.partial(
        load_model,
        checkpoint,
        scheme=scheme_of(config, checkpoint.quantization, checkpoint.name),
        dtype=DTYPES[config.dtype],
        load_format=config.load_format,
        seed=config.seed,
        max_model_len=config.max_model_len,
        host_layers=host_layers,
        cancelled=cancelled,
    )
    size = config.tensor_parallel_size
    if size == 1:
        starts = _starts(config, checkpoint.config.num_hidden_layers)
        return load(device=config.device, starts=starts, progress=progress)
    check_division(checkpoint.config, size)

    def load_share(device: str, share: Share, told: Progress) -> LoadedModel:
        return load(device=device, share=share, progress=told)

    devices = rank_devices(config.device, size)
    return load_ranks(checkpoint.config, devices, config.num_threads, load_share, progress)


def _starts(config: EngineConfig, num_layers: int) -> tuple[tuple[int, str], ...]:
    """Of the stages behind the first."""
    if config.pipeline_parallel_size == 1:
        return ()
    return stage_starts(config.devices, num_layers)


def _with_cache(
    loaded: LoadedModel,
    source: Checkpoint | None,
    plan: MemoryPlan,
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    progress: Progress,
    cancelled: Cancelled,
) -> Assembly:
    """source: of what drafts."""
    layers = _probe(loaded, config)
    draft = step_bytes = None
    if source is not None:
        draft = load_draft(config, source, checkpoint, loaded.model, progress, cancelled)
    if is_cuda(config.device):
        progress("Measuring what a step needs", 0, 0)
        step_bytes, measured = _measured_plan(config, checkpoint, loaded, layers, draft)
        plan = dataclasses.replace(measured, undivided_model_len=plan.undivided_model_len)
    plan = with_layers(plan, layers, config)
    cache, proposer, plan, notices = _caches_that_fit(config, layers, loaded.ranks, draft, plan)
    runner = make_runner(loaded, cache, config.device)
    capture_steps(runner, proposer, config, plan, progress)
    info = model_info(config, checkpoint, tokenizer, loaded, layers, plan)
    info = dataclasses.replace(info, notices=(*info.notices, *notices))
    # What lives as long as the model need not be looked at in every collection.
    gc.collect()
    gc.freeze()
    give_back()  # what loading took
    return Assembly(
        config=config,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        loaded=loaded,
        layers=layers,
        plan=plan,
        runner=runner,
        info=with_steps(info, runner, proposer),
        draft=draft,
        proposer=proposer,
        step_bytes=step_bytes,
    )


def _probe(loaded: LoadedModel, config: EngineConfig) -> dict[int, LayerSpec]:
    """What each layer stores, seen in the first pass of a model: a class may compute something
    between its layers for which it was not divided."""
    if loaded.ranks is not None:
        return loaded.ranks.whole_layers
    try:
        return probe_kv(loaded.model)
    except RuntimeError as error:
        if len(loaded.device_map.devices) == 1 or is_out_of_memory(error):
            raise
        raise UnsupportedModelError(
            f"{type(loaded.model).__name__} cannot be divided between two devices: "
            f"{describe(error).cause}",
            'Set gpu_layers to "all" and pipeline_parallel_size to 1, or choose the device cpu.',
        ) from error
    finally:
        make_current(config.device)


def _measured_plan(
    config: EngineConfig,
    checkpoint: Checkpoint,
    loaded: LoadedModel,
    layers: dict[int, LayerSpec],
    draft: Draft | None,
) -> tuple[int, MemoryPlan]:
    """What the largest step was seen to need on the GPU, and the plan of what is free there now
    that the weights are. OutOfMemoryError where not even the step fits."""
    host_layers = loaded.device_map.host_layers

    def runner(num_blocks: int) -> ModelRunner:
        cache = _cache(config, layers, loaded.ranks, num_blocks, host_layers)
        return make_runner(loaded, cache, config.device)

    try:
        activations = measure_activations(
            config, checkpoint.config.vocab_size, runner, config.device
        )
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        free, total = free_memory(config.device)
        raise OutOfMemoryError(
            f"The largest step ({config.step_token_limit:,} tokens) does not fit beside the "
            f"weights: {free / 2**30:.2f} of {total / 2**30:.2f} GiB are free.",
            "Choose a smaller token budget per step, fewer running requests or fewer bits a "
            "weight, or close other programs on the GPU.",
        ) from error
    held = dict(loaded.bytes_on)
    if draft is not None:
        held[config.device] += draft.weights_bytes
    on_host = loaded.bytes_on[CPU] if host_layers else 0
    return activations, plan_memory(
        checkpoint, config, in_use=held, host_in_use=on_host, activations=activations,
        host_layers=host_layers,
    )  # fmt: skip


def draft_source(
    config: EngineConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, host_layers: int
) -> Checkpoint | None:
    """The checkpoint of the draft model or head, checked against the model's; None where there is
    none. host_layers: of the model, beside a GPU."""
    if config.speculative_method == "draft_model":
        return check_draft(config, checkpoint, tokenizer)
    if config.speculative_method == "eagle3":
        if config.tensor_parallel_size > 1:
            raise DraftModelError(
                "An EAGLE-3 head drafts from the embeddings of the whole model, and each of "
                f"{config.tensor_parallel_size} ranks has a part of them.",
                "Use the method draft_model or ngram, or set tensor_parallel_size to 1.",
            )
        if config.pipeline_parallel_size > 1:
            raise DraftModelError(
                "An EAGLE-3 head drafts from hidden states of the whole model on one device, and "
                f"its layers are on {config.pipeline_parallel_size} GPUs.",
                "Use the method draft_model or ngram, or set pipeline_parallel_size to 1.",
            )
        if host_layers:
            raise DraftModelError(
                "An EAGLE-3 head drafts from hidden states and embeddings of the whole model on "
                f"one device, and the CPU has {host_layers} layers of {checkpoint.name}.",
                "Use the method draft_model or ngram, or bring all layers to the GPU: fewer bits a "
                "weight, a shorter context.",
            )
        return check_head(config, checkpoint)
    return None


def build_caches(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    ranks: Ranks | None,
    draft: Draft | None,
    plan: MemoryPlan,
) -> tuple[PagedBackend, Proposer | None]:
    """The KV cache of `plan`, and the proposer with that of its draft model; OutOfMemoryError with
    the numbers where they do not fit."""
    try:
        cache = _cache(config, layers, ranks, plan.num_blocks, plan.host_layers)
        return cache, make_proposer(config, draft, plan.num_blocks)
    except (MemoryError, RuntimeError) as error:
        raise OutOfMemoryError(
            f"The KV cache of {plan.cache_bytes_in_all / 2**30:.2f} GiB could not be allocated: "
            f"{error}",
            "Choose a smaller cache or context length, or close other programs.",
        ) from error


def _cache(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    ranks: Ranks | None,
    num_blocks: int,
    host_layers: int,
) -> PagedBackend:
    """layers: of the whole model."""
    dtype = DTYPES[config.dtype]
    if ranks is None:
        starts = _starts(config, len(layers))
        return make_backend(
            config, layers, num_blocks, dtype, host_layers=host_layers, starts=starts
        )

    def of_rank(device: str, own: dict[int, LayerSpec]) -> PagedBackend:
        return make_backend(config.replace(device=device), own, num_blocks, dtype)

    return ParallelCache(ranks.make_caches(of_rank), ranks.team.devices)


def _caches_that_fit(
    config: EngineConfig,
    layers: dict[int, LayerSpec],
    ranks: Ranks | None,
    draft: Draft | None,
    plan: MemoryPlan,
) -> tuple[PagedBackend, Proposer | None, MemoryPlan, list[str]]:
    """`build_caches`, with the plan that was followed and what there is to say of it. Where other
    programs have taken memory since it was planned, and the user did not name a size, the cache
    becomes as small as one request of the whole context, before it is given up."""
    assert config.max_model_len is not None, "resolved before"
    least = blocks_of(config.max_model_len, config)
    wanted = plan
    while True:
        try:
            cache, proposer = build_caches(config, layers, ranks, draft, wanted)
        except OutOfMemoryError as error:
            smaller = shrunk(wanted, least)
            if smaller is None or config.kv_cache_memory_bytes is not None:
                raise
            let_go(error)
        else:
            break
        wanted = smaller
        give_back()
    if wanted is plan:
        return cache, proposer, plan, []
    text = (
        f"The KV cache has {wanted.num_blocks:,} blocks "
        f"({wanted.cache_bytes_in_all / 2**30:.2f} GiB) and not {plan.num_blocks:,}: the memory "
        f"of {config.device} that was free when it was planned is in use."
    )
    return cache, proposer, wanted, [text]


def capture_steps(
    runner: ModelRunner,
    proposer: Proposer | None,
    config: EngineConfig,
    plan: MemoryPlan,
    progress: Progress,
) -> None:
    """Capture the steps in which everybody decodes, and those of the draft model, where the device
    can and the user lets it."""
    if config.enforce_eager or capture_for(torch.device(config.device)) is None:
        return
    assert config.max_model_len is not None, "resolved before"
    progress("Capturing the decoding steps", 0, 0)
    if proposer is not None:
        proposer.release_graphs()  # both models' old ones go before there are new ones
    longest = min(plan.num_blocks, -(-config.max_model_len // config.block_size))
    taps = None if proposer is None else proposer.taps
    of_drafts = 0 if proposer is None else longest
    runner.capture(sizes_for(most_rows(config)), config.block_size, of_drafts, taps)
    if proposer is not None:
        proposer.capture(config.max_num_seqs, longest)


def with_layers(plan: MemoryPlan, layers: dict[int, LayerSpec], config: EngineConfig) -> MemoryPlan:
    """The plan in blocks of the size that the loaded model really stores: what was predicted from
    its config alone may differ for an architecture that nobody has met."""

    def per_block(part: dict[int, LayerSpec]) -> int:
        widths = KVWidths.sum(layer.widths for layer in part.values())
        widths = widths.share(ranks_beside(config))
        return config.block_size * widths.bytes_per_token(config.kv_dtype, itemsize)

    itemsize = DTYPES[config.dtype].itemsize
    if config.pipeline_parallel_size > 1:
        layers = staged(layers, config.device, _starts(config, len(layers)))[config.device]
    first, rest = divided(layers, plan.host_layers)
    host, own = per_block(first) if first else 0, per_block(rest) + plan.draft_bytes_per_block
    if (own, host) == (plan.bytes_per_block, plan.host_bytes_per_block):
        return plan
    blocks = max(1, plan.cache_bytes_in_all // (own + host))
    plan = dataclasses.replace(plan, bytes_per_block=own, host_bytes_per_block=host)
    return plan.with_blocks(blocks)


def release_memory() -> None:
    """Give the memory of what was just dropped back to the system."""
    gc.unfreeze()
    gc.collect()
    give_back()
