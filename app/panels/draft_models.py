"""Which models could draft for the one that is open, and what a chosen one would bring.

The models in known places are looked at in a thread: those of the same vocabulary and at most half
the size are offered. A folder that is chosen is checked the same way before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog

from app.models.sources import ModelSource, SourceKind, hugging_face_sources, recent_sources
from app.paths import starter_draft
from app.tasks import Task, run_task
from app.units import format_bytes, format_count
from engine.config import EngineConfig
from engine.errors import ErrorInfo, InferdeckError
from widgets.path_control import PathControl

METHOD, MODEL = "speculative_method", "speculative_model"
_LARGEST = 0.5  # of the model's parameters; a larger draft takes too long to pay


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that can draft. Bytes: of its weights, and of its KV for each token."""

    path: str
    title: str
    num_parameters: int
    share: float  # of the model's parameters
    weights: int
    kv_bytes_per_token: int

    @property
    def words(self) -> str:
        smaller = f"{1 / self.share:.0f}x smaller" if self.share < 0.67 else "not much smaller"
        return (
            f"same vocabulary · {format_count(self.num_parameters)} parameters, {smaller} · "
            f"{format_bytes(self.weights)} and {format_bytes(self.kv_bytes_per_token)} a token"
        )


def look_at(path: str, title: str, config: EngineConfig) -> Candidate:
    """`path` as the draft of the model that runs with `config`. Raises InferdeckError where it
    cannot draft for it. Reads no weights; imports torch: call it off the GUI thread."""
    import torch

    from engine.loading.checkpoint import Checkpoint
    from engine.memory import model_sizes
    from engine.speculation.draft_source import check_draft, draft_dtype
    from engine.tokenization import Tokenizer

    is_dummy = config.load_format == "dummy"
    wanted = config.replace(speculative_method="draft_model", speculative_model=path)
    target = Checkpoint.open(config.model, dummy=is_dummy)
    tokenizer = Tokenizer.from_folder(target.path, allow_missing=is_dummy)
    draft = check_draft(wanted, target, tokenizer)
    sizes = model_sizes(draft, getattr(torch, draft_dtype(wanted, draft)))
    return Candidate(
        path=path,
        title=title,
        num_parameters=draft.num_parameters,
        share=draft.num_parameters / target.num_parameters,
        weights=sizes.weights,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
    )


def find_candidates(sources: Sequence[ModelSource], config: EngineConfig) -> list[Candidate]:
    """Those of `sources` that could draft well, smallest first. Call it off the GUI thread."""
    found = []
    for source in [*sources, *hugging_face_sources()]:
        try:
            candidate = look_at(source.path, source.title, config)
        except (InferdeckError, OSError):
            continue
        if candidate.share <= _LARGEST:
            found.append(candidate)
    return sorted(found, key=lambda candidate: candidate.num_parameters)


class DraftModels(QObject):
    """Fills the row of the draft model, and says what is known of the one that is chosen.

    `recent`: gives the models that were open before. Nothing is searched before it is asked for.
    """

    checked = Signal(str, str)  # words, tone of a SettingRow's hint
    found = Signal()  # the search has ended: see `recommended`

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
        self._search: Task | None = None
        self._check: Task | None = None
        self._known: dict[str, Candidate] = {}
        control.browse_wanted.connect(self._browse)

    def show_model(self, config: EngineConfig) -> None:
        """A model is open."""
        self._config = config
        self._known.clear()
        self._control.set_known([])
        if self._search is not None:
            self._search.cancel()
            self._search = None

    def search(self) -> None:
        """Look for models of the same vocabulary, in a thread."""
        config = self._config
        if config is None or self._search is not None or self._known:
            return
        self.checked.emit("looking for models of the same vocabulary…", "small")
        sources = [_starter_draft(), *recent_sources(self._recent())]
        self._search = run_task(
            self,
            lambda: find_candidates(sources, config),
            self._show_found,
            lambda error: self._show_found([]),
        )

    def describe(self, path: str | None) -> None:
        """Say by `checked` what is known of a draft model that the user chose."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        config = self._config
        if path is None or config is None:
            self.checked.emit("", "small")
        elif path in self._known:
            self.checked.emit(self._known[path].words, "small")
        else:
            self.checked.emit("checking vocabulary and size…", "small")
            self._check = run_task(
                self, lambda: look_at(path, path, config), self._described, self._refused
            )

    def _show_found(self, candidates: list[Candidate]) -> None:
        self._search = None
        self._known |= {candidate.path: candidate for candidate in candidates}
        self._control.set_known([(c.path, c.title) for c in candidates])
        nothing = "no smaller model of this vocabulary was found: choose a folder"
        self.checked.emit("" if candidates else nothing, "small")
        self.found.emit()

    @property
    def recommended(self) -> str | None:
        """The smallest model that is known to draft for the one that is open."""
        return next(iter(self._known), None)

    def _described(self, candidate: Candidate) -> None:
        self._known[candidate.path] = candidate
        self.checked.emit(candidate.words, "small")

    def _refused(self, error: ErrorInfo) -> None:
        self.checked.emit(f"{error.cause} {error.remedy}".strip(), "error")

    def _browse(self) -> None:
        window = self._control.window()
        folder = QFileDialog.getExistingDirectory(window, "Choose a draft model")
        if folder:
            self._control.choose(folder)


def _starter_draft() -> ModelSource:
    return ModelSource(SourceKind.STARTER, str(starter_draft()), "Starter draft model")
