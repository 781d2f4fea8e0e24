"""`DraftModels`: finds and checks draft models and EAGLE-3 heads for the loaded model.

For draft_model: models with the same vocabulary and at most half the parameters. For eagle3: heads
made for the model. A chosen folder is checked before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog

from app.link.tasks import Task, run_task
from app.paths import starter_draft, starter_head
from app.storage.model_sources import ModelSource, SourceKind, hugging_face_sources, recent_sources
from engine.config import EngineConfig
from engine.errors import ErrorInfo, InferdeckError
from engine.units import bytes_text, factor_text, scaled_count
from widgets.controls.paths import PathControl

METHOD, MODEL = "speculative_method", "speculative_model"
WITH_MODEL = ("draft_model", "eagle3")
"""Methods that need a draft model or head."""

_LARGEST = 0.5  # of the model's parameters; larger drafts are too slow


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft model or head. Bytes of weights, and of KV cache per token."""

    path: str
    title: str
    num_parameters: int
    share: float  # of the model's parameters
    weights: int
    kv_bytes_per_token: int
    is_head: bool = False

    @property
    def words(self) -> str:
        smaller = f"{factor_text(1 / self.share)} smaller" if self.share < 0.67 else "similar size"
        fits = "Trained for this model" if self.is_head else "Same vocabulary"
        return (
            f"{fits} · {scaled_count(self.num_parameters)} parameters, {smaller} · "
            f"{bytes_text(self.weights)}, {bytes_text(self.kv_bytes_per_token)} KV per token"
        )


def look_at(path: str, title: str, config: EngineConfig, method: str) -> Candidate:
    """Check `path` as draft for `config`'s model. Raises InferdeckError. Reads no weights; imports
    torch: call off the GUI thread."""
    import torch

    from engine.memory.model_sizes import head_sizes, model_sizes
    from engine.models.architecture import count_parameters
    from engine.models.checkpoint import Checkpoint
    from engine.speculation.draft_loading import check_draft, check_head, draft_dtype
    from engine.speculation.eagle3.shape import read_shape
    from engine.text.tokenizer import Tokenizer

    is_dummy = config.load_format == "dummy"
    wanted = config.replace(speculative_method=method, speculative_model=path)
    target = Checkpoint.open(config.model, dummy=is_dummy)
    if method == "eagle3":
        head = check_head(wanted, target)
        count = read_shape(head, target).num_parameters
        sizes = head_sizes(head, target, getattr(torch, config.dtype))
    else:
        tokenizer = Tokenizer.from_folder(target.path, allow_missing=is_dummy)
        draft = check_draft(wanted, target, tokenizer)
        count = count_parameters(draft.config)
        sizes = model_sizes(draft, getattr(torch, draft_dtype(wanted, draft)))
    return Candidate(
        path=path,
        title=title,
        num_parameters=count,
        share=count / count_parameters(target.config),
        weights=sizes.weights,
        kv_bytes_per_token=sizes.kv_bytes_per_token(config.kv_dtype),
        is_head=method == "eagle3",
    )


def find_candidates(
    sources: Sequence[ModelSource], config: EngineConfig, method: str
) -> list[Candidate]:
    """Suitable drafts among `sources`, smallest first. Call off the GUI thread."""
    found = []
    for source in [*sources, *hugging_face_sources()]:
        try:
            candidate = look_at(source.path, source.title, config, method)
        except (InferdeckError, OSError):
            continue
        if candidate.share <= _LARGEST:
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.num_parameters)


class DraftModels(QObject):
    """Fills the draft model row and describes the chosen draft. `recent`: recent models."""

    checked = Signal(str, str)  # text, tone of a SettingRow's hint
    found = Signal()  # the search ended: see `recommended`

    def __init__(
        self,
        control: PathControl,
        recent: Callable[[], Sequence[tuple[str, str, str]]],
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._control = control
        self._recent = recent
        self._config: EngineConfig | None = None
        self._method = WITH_MODEL[0]
        self._search: Task | None = None
        self._check: Task | None = None
        self._known: dict[str, dict[str, Candidate]] = {}  # by method and path
        control.browse_wanted.connect(self._browse)

    def show_model(self, config: EngineConfig) -> None:
        self._config = config
        self._known.clear()
        self._control.set_known([])
        self._stop_search()

    def search(self, method: str) -> None:
        config = self._config
        if config is None or method not in WITH_MODEL:
            return
        if method != self._method:
            self._stop_search()
        self._method = method
        if method in self._known:
            self._show_known()
            return
        if self._search is not None:
            return
        is_head = method == "eagle3"
        what = "EAGLE-3 heads for this model" if is_head else "models with the same vocabulary"
        self.checked.emit(f"Searching for {what}…", "small")
        sources = [*_starter_sources(), *recent_sources(self._recent())]
        self._search = run_task(
            self,
            lambda: find_candidates(sources, config, method),
            self._show_found,
            lambda error: self._show_found([]),
        )

    @property
    def recommended(self) -> str | None:
        """The smallest suitable draft."""
        return next(iter(self._known.get(self._method, {})), None)

    def knows(self, path: str | None) -> bool:
        return path in self._known.get(self._method, {})

    def describe(self, path: str | None) -> None:
        """Report on a chosen draft by `checked`."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        config, method = self._config, self._method
        if path is None or config is None:
            self.checked.emit("", "small")
        elif path in self._known.get(method, {}):
            self.checked.emit(self._known[method][path].words, "small")
        else:
            self.checked.emit("Checking compatibility…", "small")
            self._check = run_task(
                self, lambda: look_at(path, path, config, method), self._described, self._refused
            )

    def _stop_search(self) -> None:
        if self._search is not None:
            self._search.cancel()
            self._search = None

    def _show_found(self, candidates: list[Candidate]) -> None:
        self._search = None
        own = self._known.setdefault(self._method, {})
        own |= {candidate.path: candidate for candidate in candidates}
        self._show_known()

    def _show_known(self) -> None:
        own = self._known[self._method]
        self._control.set_known([(c.path, c.title) for c in own.values()])
        is_head = self._method == "eagle3"
        what = "EAGLE-3 head for this model" if is_head else "model with the same vocabulary"
        nothing = f"No {what} found. Choose a model folder."
        self.checked.emit("" if own else nothing, "small")
        self.found.emit()

    def _described(self, candidate: Candidate) -> None:
        self._known.setdefault(self._method, {})[candidate.path] = candidate
        self.checked.emit(candidate.words, "small")

    def _refused(self, error: ErrorInfo) -> None:
        self.checked.emit(f"{error.cause} {error.remedy}".strip(), "error")

    def _browse(self) -> None:
        window = self._control.window()
        folder = QFileDialog.getExistingDirectory(window, "Choose draft model")
        if folder:
            self._control.choose(folder)


def _starter_sources() -> list[ModelSource]:
    kind = SourceKind.STARTER
    return [
        ModelSource(kind, str(starter_draft()), "Demo draft model"),
        ModelSource(kind, str(starter_head()), "Demo EAGLE-3 head"),
    ]
