"""`TokensPopover`: the tokens of one reply, at the button below it."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRect, QSize, Qt, Signal
from PySide6.QtWidgets import QComboBox, QPushButton, QScrollArea, QWidget

from widgets.controls.frames import scroll_area
from widgets.controls.layouts import dressed, hbox, label, wrapped
from widgets.controls.popover import Popover
from widgets.controls.swatches import Swatches
from widgets.theme.fonts import scaled
from widgets.theme.icons import set_icon
from widgets.theme.theme import SPACE_2, SPACE_3, SPACE_4
from widgets.tokens.choices import TokenChoices
from widgets.tokens.paint import PAINTS
from widgets.tokens.record import TokenRecord, quoted, summary_text, token_text
from widgets.tokens.strip import NONE, TokenStrip

WIDTH, LARGEST_STRIP, LARGEST_CHOICES = 666, 200, 148
"""Pixels at the default text size, where the window has room."""
HINT = "Hover over a token or use the arrow keys. Click to pin it. Ctrl+arrow: next unlikely token."
NO_ALTERNATIVES = "No alternatives recorded. Set Top logprobs in the sampling settings."


class TokensPopover(Popover):
    """`branch_wanted(index, token id)`: generate a reply with the same tokens before `index`, then
    this token."""

    branch_wanted = Signal(int, int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName("Reply tokens")
        self._refusal = ""
        self.paint_by = dressed(QComboBox(), "Color by")
        for paint in PAINTS:
            self.paint_by.addItem(paint.name)
            row = self.paint_by.count() - 1
            self.paint_by.setItemData(row, paint.help, Qt.ItemDataRole.ToolTipRole)
        self.paint_by.currentIndexChanged.connect(self._paint_by)
        self.summary, self.line, self.note = wrapped("muted"), wrapped(), label(role="small")
        self.strip = TokenStrip()
        self.strip.pointed.connect(self._show_token)
        self.strip.moved.connect(self._follow)
        self._area = _scrolling(self.strip)
        self.legend = Swatches(PAINTS[0].legend)
        self.choices = TokenChoices()
        self._rows = _scrolling(self.choices)
        self.choices.selected.connect(lambda row: self._show_choice())
        self.choices.activated.connect(lambda row: self._ask_for_branch())
        self.strip.activated.connect(self.choices.setFocus)
        self.branch = QPushButton()
        set_icon(self.branch, "branch")
        self.branch.clicked.connect(self._ask_for_branch)
        self.note.setWordWrap(True)
        title = label("Reply tokens", "title")
        self.column.addLayout(hbox((title, 1), self.paint_by, spacing=-1))
        for widget in (self.summary, self._area, self.legend, self.line, self._rows):
            self.column.addWidget(widget)
        self.column.addLayout(hbox((self.note, 1), self.branch, spacing=-1))
        self._paint_by(0)

    def show_tokens(self, records: Sequence[TokenRecord], refusal: str = "") -> None:
        """Show a reply. `refusal`: why no branch can start from it now, or ""."""
        self._refusal = refusal
        self.summary.setText(summary_text(records))
        self.choices.set_num_rows(max((record.num_choices for record in records), default=1))
        self._rows.setFixedHeight(min(self.choices.sizeHint().height(), scaled(LARGEST_CHOICES)))
        width = self._width() - 2 * SPACE_3 - SPACE_4
        self.strip.resize(width, self.strip.height())
        self.strip.show_tokens(records)
        needed = self.strip.heightForWidth(width)
        self._area.setMaximumHeight(min(needed, scaled(LARGEST_STRIP)))
        self._show_token(self.strip.pointed_token)

    def sizeHint(self) -> QSize:
        """At most the window: the strip is lower there."""
        width, room = self._width(), self.window().height() - 2 * SPACE_2
        return QSize(width, min(self.column.totalHeightForWidth(width), room))

    def _width(self) -> int:
        return min(scaled(WIDTH), self.window().width() - 2 * SPACE_2)

    def first_field(self) -> QWidget:
        if self.strip.pointed_token != NONE:
            self._follow(self.strip.rect_of(self.strip.pointed_token).toAlignedRect())
        return self.strip

    def _paint_by(self, index: int) -> None:
        paint = PAINTS[index]
        self.strip.paint_by(paint)
        self.paint_by.setToolTip(paint.help)
        self.legend.set_swatches(paint.legend)

    def _follow(self, area: QRect) -> None:
        centre = area.center()
        self._area.ensureVisible(centre.x(), centre.y(), 0, area.height() + SPACE_2)

    def _show_token(self, index: int) -> None:
        records = self.strip.records
        self.line.setText(token_text(records, index) if index != NONE else "")
        self.choices.show_token(records[index] if index != NONE else None)
        has_others = index != NONE and bool(records[index].alternatives)
        self.note.setText(self._refusal or (HINT if has_others else NO_ALTERNATIVES))
        self.grow()

    def _show_choice(self) -> None:
        choice, index = self.choices.choice, self.strip.pointed_token
        if choice is not None:
            centre = self.choices.row_rect(self.choices.row).center().toPoint()
            self._rows.ensureVisible(0, centre.y(), 0, SPACE_4)
        if choice is None or index == NONE:
            self.branch.setText("Branch")
        elif choice.token_id == self.strip.records[index].token_id:
            self.branch.setText("Regenerate from here")
        else:
            self.branch.setText(f"Branch with {quoted(choice.text)[:24]}")
        self.branch.setEnabled(choice is not None and not self._refusal)
        tip = "Generate a new version from this token; earlier tokens are kept"
        self.branch.setToolTip(self._refusal or tip)

    def _ask_for_branch(self) -> None:
        choice, index = self.choices.choice, self.strip.pointed_token
        if choice is not None and index != NONE and not self._refusal:
            self.hide()
            self.branch_wanted.emit(index, choice.token_id)


def _scrolling(inside: QWidget) -> QScrollArea:
    """`inside` at full height, scrolled if that does not fit."""
    area = scroll_area(inside)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return area
