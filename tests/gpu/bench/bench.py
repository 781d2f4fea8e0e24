"""What a measuring function gets: the device, and the engine that the cells of a group share."""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.bench.shapes import folder_of

if TYPE_CHECKING:
    import torch

    from engine import EngineConfig, LLMEngine


class UnableError(Exception):
    """What was asked for cannot be had here; the text says why. No traceback is of any use."""


class Bench:
    """quick: tiny sizes, for a trial without figures."""

    def __init__(self, device: str, quick: bool) -> None:
        self._device_name = device
        self.quick = quick
        self.load_s = 0.0  # of the engine that is there
        self._engine: LLMEngine | None = None
        self._key: Mapping[str, Any] = {}
        self._failed: dict[str, str] = {}
        self._models: dict[str, Path] = {}
        self._folder: Path | None = None

    @property
    def is_on_gpu(self) -> bool:
        return self._device_name.startswith("cuda")

    @cached_property
    def device(self) -> torch.device:
        import torch

        if self.quick:
            torch.set_num_threads(1)  # at tiny sizes threads wait for each other and do no more
        return torch.device(self._device_name)

    def folder(self) -> Path:
        """A temporary folder, removed by `close`."""
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="gpu-bench-"))
        return self._folder

    def model_folder(self, shape: str) -> Path:
        """A folder with the config of `shape`."""
        if shape not in self._models:
            own = self.folder() / shape
            own.mkdir()
            shutil.copy(folder_of(shape) / "config.json", own)
            self._models[shape] = own
        return self._models[shape]

    def config(self, shape: str, kv: str = "auto", **settings: Any) -> EngineConfig:
        """Of an engine with random weights of `shape`. All layers are on the device, or it does not
        load, unless `settings` say otherwise."""
        from engine import EngineConfig

        return EngineConfig(
            model=str(self.model_folder(shape)), load_format="dummy", dtype="bfloat16",
            device=str(self.device), gpu_layers="all", kv_cache_dtype=kv,
            num_threads=1 if self.quick else None,
        ).replace(**settings)  # fmt: skip

    def engine(self, shape: str, kv: str = "auto", **settings: Any) -> LLMEngine:
        """An engine of that `config`; the one that is there where only the number format of the KV
        cache differs, which is then rebuilt. Raises UnableError where it cannot be loaded, the
        second time without trying."""
        key = {"shape": shape, **settings}
        if self._engine is not None and key != self._key:
            self.drop_engine()
        if self._engine is None:
            self._engine = self._load(shape, kv, settings)
            self._key = key
        if self._engine.config.kv_cache_dtype != kv:
            self._rebuild_cache(self._engine, kv)
        return self._engine

    def _rebuild_cache(self, engine: LLMEngine, kv: str) -> None:
        from engine.errors import InferdeckError

        try:
            engine.reconfigure(kv_cache_dtype=kv)
        except InferdeckError as error:
            raise UnableError(f"The cache could not be made in {kv}: {error}") from error

    @property
    def current(self) -> LLMEngine:
        """The engine that was asked for last."""
        assert self._engine is not None, "no engine was asked for"
        return self._engine

    def _load(self, shape: str, kv: str, settings: Mapping[str, Any]) -> LLMEngine:
        from engine import LLMEngine
        from engine.errors import InferdeckError

        name = f"{shape} {kv} {dict(settings)}"
        if name in self._failed:
            raise UnableError(self._failed[name])
        config = self.config(shape, kv, **settings)
        began = time.perf_counter()
        try:
            engine = LLMEngine(config)
        except InferdeckError as error:
            self._failed[name] = f"The engine could not be loaded: {error}"
            raise UnableError(self._failed[name]) from error
        self.load_s = time.perf_counter() - began
        return engine

    def settle(self) -> None:
        """After a cell that failed: nothing of its requests is left, or no engine."""
        if self._engine is None:
            self.free()
            return
        try:
            for request in self._engine.snapshot().requests:
                self._engine.abort(request.request_id)
            while self._engine.has_unfinished:
                self._engine.step()
        except Exception:
            self.drop_engine()
        self.free()

    def drop_engine(self) -> None:
        engine, self._engine, self._key = self._engine, None, {}
        if engine is not None:
            engine.shutdown()
        del engine
        self.free()

    def free(self) -> None:
        """Give what is not used any more back to the device."""
        gc.collect()
        if self.is_on_gpu:
            import torch

            torch.cuda.empty_cache()

    def close(self) -> None:
        self.drop_engine()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
