"""The application's one stylesheet, generated from the names of the theme.

Properties that widgets set to ask for a look (see `widgets.theme.theme.restyle`):

    QPushButton   kind="primary" | "danger" | "flat" | "link"
    QToolButton   flat always; kind="nav" for the page buttons (icon above text, bar when checked)
    QFrame        panel=True (rounded, bordered), bubble="user", notice="info"|"warning"|"error"
    QLabel        role="title" | "small" | "muted" | "figure" | "unit" | "code" | "error" |
                  "warning" | "better" | "worse",
                  tone="success" | "warning" (the colour alone),
                  badge="live" | "cache rebuild" | "reload" | "restart" | "neutral"
    QTabBar       tight=True (tabs closer together)
    QAbstractItemView, QTextEdit...   bare=True (no border, the surface of what is around it)
"""

from __future__ import annotations

from pathlib import Path
from string import Template

import msgspec
from PySide6.QtGui import QFontMetrics

from widgets.theme.fonts import mono_font, point_size, scaled, ui_font
from widgets.theme.tables import Theme

# What the stylesheet needs as pictures: name -> (colour name, path of the 12-pixel image)
_IMAGES = {
    "down": ("text_muted", "M2.5 4.5 6 8l3.5-3.5"),
    "down_off": ("text_disabled", "M2.5 4.5 6 8l3.5-3.5"),
    "down_primary": ("accent_text", "M2.5 4.5 6 8l3.5-3.5"),
    "up": ("text_muted", "M2.5 7.5 6 4l3.5 3.5"),
    "up_off": ("text_disabled", "M2.5 7.5 6 4l3.5 3.5"),
    "right": ("text_muted", "M4.5 2.5 8 6l-3.5 3.5"),
    "check": ("accent_text", "M2.5 6.2 5 8.7l4.7-5.2"),
    "check_off": ("panel", "M2.5 6.2 5 8.7l4.7-5.2"),
    "check_menu": ("text", "M2.5 6.2 5 8.7l4.7-5.2"),
    "dash": ("accent_text", "M3 6h6"),
}
_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="12" height="12" viewBox="0 0 12 12">'
    '<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" stroke-linecap="round" '
    'stroke-linejoin="round"/></svg>'
)

_TEMPLATE = Template("""
QWidget { color: $text; }
QMainWindow, QDialog, QWizard { background: $window; }
QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QMainWindow::separator { background: $window; width: 8px; height: 8px; }
QToolTip { background: $raised; color: $text; border: 1px solid $border_strong; padding: 4px 6px; }

QFrame[panel="true"] {
    background: $panel; border: 1px solid $border; border-radius: 6px;
}
QFrame[panel="true"]:focus { border: 1px solid $accent; }
QFrame[bubble="user"] {
    background: $user_bubble; border: 1px solid $border; border-radius: 6px;
}
QFrame[notice="info"] { background: $raised; border: 1px solid $border; border-radius: 6px; }
QFrame[notice="warning"] { background: $panel; border: 1px solid $warning; border-radius: 6px; }
QFrame[notice="error"] { background: $panel; border: 1px solid $danger; border-radius: 6px; }
QFrame[line="true"] { background: $border; border: none; max-height: 1px; min-height: 1px; }

QLabel { background: transparent; }
QLabel:disabled { color: $text_disabled; }
QLabel[role="title"] { font-weight: 600; }
QLabel[role="small"], QLabel[role="muted"], QLabel[role="unit"] { color: $text_muted; }
QLabel[role="small"], QLabel[role="unit"] { font-size: ${small}pt; }
QLabel[role="unit"] { font-weight: 600; }
QLabel[role="figure"] { font-size: ${large}pt; font-weight: 600; }
QLabel[role="error"] { color: $danger; }
QLabel[role="warning"] { color: $warning; }
QLabel[role="better"] { color: $success; }
QLabel[role="worse"] { color: $danger; }
QLabel[tone="success"] { color: $success; }
QLabel[tone="warning"] { color: $warning; }
QLabel[role="code"] { font-family: $mono; }
QLabel[badge] {
    font-size: ${small}pt; padding: 0px 7px 1px 7px; border: 1px solid $border_strong;
    border-radius: 8px; color: $text_muted; max-height: 16px;
}
QLabel[badge="live"] { color: $badge_live; border-color: $badge_live; }
QLabel[badge="cache rebuild"] { color: $badge_rebuild; border-color: $badge_rebuild; }
QLabel[badge="reload"], QLabel[badge="restart"] {
    color: $badge_reload; border-color: $badge_reload;
}

QPushButton {
    background: $panel; color: $text; border: 1px solid $border; border-radius: 4px;
    padding: 4px 12px; min-height: ${line}px; icon-size: ${icon}px;
}
QPushButton:hover { background: $hover; border-color: $border_strong; }
QPushButton:pressed, QPushButton:checked { background: $pressed; }
QPushButton:focus { border: 2px solid $accent; padding: 3px 11px; }
QPushButton, QToolButton, QCheckBox, QRadioButton { outline: none; }
QPushButton:disabled { color: $text_disabled; background: $panel; border-color: $border; }
QPushButton[kind="primary"] {
    background: $accent; color: $accent_text; border-color: $accent; font-weight: 600;
}
QPushButton[kind="primary"]:hover { background: $accent_hover; border-color: $accent_hover; }
QPushButton[kind="primary"]:pressed { background: $accent_pressed; }
QPushButton[kind="primary"]:focus { border: 2px solid $text; }
QPushButton[kind="primary"]:disabled {
    background: $pressed; color: $text_disabled; border-color: $pressed;
}
QPushButton[kind="danger"] { color: $danger; border-color: $danger; }
QPushButton[kind="danger"]:hover { background: $danger; color: $danger_text; }
QPushButton[kind="danger"]:disabled { color: $text_disabled; border-color: $border; }
QPushButton[kind="flat"] { background: transparent; border-color: transparent; padding: 4px 8px; }
QPushButton[kind="flat"]:hover { background: $hover; }
QPushButton[kind="flat"]:pressed, QPushButton[kind="flat"]:checked { background: $pressed; }
QPushButton[kind="flat"]:focus { border: 2px solid $accent; padding: 3px 7px; }
QPushButton[kind="link"] {
    background: transparent; border: 1px solid transparent; color: $accent; padding: 0px 2px;
    text-align: left; min-height: 0px;
}
QPushButton[kind="link"]:hover { text-decoration: underline; }
QPushButton[kind="link"]:focus { border: 1px solid $accent; border-radius: 2px; }
QPushButton[kind="link"]:disabled { color: $text_disabled; }
QPushButton::menu-indicator { image: url($image_down); width: 12px; height: 12px; right: 6px;
    subcontrol-position: center right; subcontrol-origin: padding; }
QPushButton[kind="primary"]::menu-indicator { image: url($image_down_primary); }
QPushButton::menu-indicator:disabled { image: url($image_down_off); }

QToolButton {
    background: transparent; border: 1px solid transparent; border-radius: 4px; padding: 3px;
    icon-size: ${tool}px;
}
QToolButton:hover { background: $hover; }
QToolButton:pressed, QToolButton:checked { background: $pressed; }
QToolButton:focus { border: 1px solid $accent; }
QToolButton:disabled { color: $text_disabled; }
QToolButton::menu-indicator { image: none; }
QToolButton[kind="nav"] {
    color: $text_muted; border: none; border-left: 3px solid transparent; border-radius: 0px;
    padding: 8px 3px 8px 0px; font-size: ${small}pt;
}
QToolButton[kind="nav"]:hover { color: $text; background: $hover; }
QToolButton[kind="nav"]:checked { color: $text; background: transparent;
    border-left: 3px solid $accent; }
QToolButton[kind="nav"]:focus { background: $hover; }

QLineEdit, QPlainTextEdit, QTextEdit, QTextBrowser, QAbstractSpinBox, QComboBox {
    background: $panel; color: $text; border: 1px solid $border; border-radius: 4px;
    selection-background-color: $selection; selection-color: $selection_text;
    placeholder-text-color: $text_muted;
}
QLineEdit, QAbstractSpinBox { padding: 2px 6px; min-height: ${field}px; }
QComboBox { padding: 2px 8px; min-height: ${field}px; }
QPlainTextEdit, QTextEdit { padding: 4px; }
QLineEdit:hover, QAbstractSpinBox:hover, QComboBox:hover { border-color: $border_strong; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QAbstractSpinBox:focus, QComboBox:focus {
    border: 1px solid $accent;
}
QLineEdit:disabled, QPlainTextEdit:disabled, QTextEdit:disabled, QAbstractSpinBox:disabled,
QComboBox:disabled { color: $text_disabled; background: $raised; }
QLineEdit[invalid="true"], QAbstractSpinBox[invalid="true"], QPlainTextEdit[invalid="true"] {
    border: 1px solid $danger;
}
QTextBrowser, QTextEdit[bare="true"], QPlainTextEdit[bare="true"], QAbstractItemView[bare="true"],
QScrollArea[bare="true"] { background: transparent; border: none; padding: 0px; }
QScrollArea { background: transparent; border: none; }
QScrollArea[ring="true"], QTextEdit[ring="true"], QPlainTextEdit[ring="true"] {
    border: 1px solid transparent; border-radius: 4px;
}
QScrollArea[ring="true"]:focus, QTextEdit[ring="true"]:focus, QPlainTextEdit[ring="true"]:focus {
    border-color: $accent;
}
QScrollArea > QWidget > QWidget[bare="true"] { background: transparent; }

QComboBox::drop-down { border: none; width: 22px; }
QComboBox::down-arrow { image: url($image_down); width: 12px; height: 12px; }
QComboBox::down-arrow:disabled { image: url($image_down_off); }
QComboBox QAbstractItemView {
    background: $panel; border: 1px solid $border_strong; padding: 2px; outline: none;
    selection-background-color: $selection; selection-color: $selection_text;
}
QComboBox QAbstractItemView::item { min-height: 24px; padding: 0px 6px; }
QAbstractSpinBox { padding-right: 20px; qproperty-alignment: 'AlignRight | AlignVCenter'; }
QAbstractSpinBox:focus { border-width: 2px; padding: 1px 19px 1px 5px; }
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button {
    subcontrol-origin: border; width: 20px; border: none; background: transparent;
}
QAbstractSpinBox::up-button { subcontrol-position: top right; }
QAbstractSpinBox::down-button { subcontrol-position: bottom right; }
QAbstractSpinBox::up-button:hover, QAbstractSpinBox::down-button:hover { background: $hover; }
QAbstractSpinBox::up-arrow { image: url($image_up); width: 9px; height: 9px; }
QAbstractSpinBox::down-arrow { image: url($image_down); width: 9px; height: 9px; }
QAbstractSpinBox::up-arrow:disabled, QAbstractSpinBox::up-arrow:off { image: url($image_up_off); }
QAbstractSpinBox::down-arrow:disabled, QAbstractSpinBox::down-arrow:off {
    image: url($image_down_off);
}

QCheckBox, QRadioButton { spacing: 8px; background: transparent; }
QCheckBox:disabled, QRadioButton:disabled { color: $text_disabled; }
QCheckBox::indicator, QRadioButton::indicator, QAbstractItemView::indicator {
    width: 14px; height: 14px; border: 1px solid $border_strong; background: $panel;
}
QCheckBox::indicator, QAbstractItemView::indicator { border-radius: 3px; }
QRadioButton::indicator { border-radius: 8px; }
QCheckBox::indicator:hover, QRadioButton::indicator:hover { border-color: $text_muted; }
QCheckBox::indicator:checked, QAbstractItemView::indicator:checked {
    background: $accent; border-color: $accent; image: url($image_check);
}
QCheckBox::indicator:indeterminate { background: $accent; border-color: $accent;
    image: url($image_dash); }
QRadioButton::indicator:checked { background: $accent_text; border: 5px solid $accent;
    width: 6px; height: 6px; }
QCheckBox::indicator:disabled { border-color: $border; background: $raised; }
QCheckBox::indicator:checked:disabled { background: $text_disabled; image: url($image_check_off); }
QCheckBox:focus::indicator, QRadioButton:focus::indicator { border-color: $accent; }
QCheckBox:focus, QRadioButton:focus { color: $accent; }

QSlider { min-height: 18px; }
QSlider::groove:horizontal { height: 4px; border-radius: 2px; background: $pressed; }
QSlider::sub-page:horizontal { height: 4px; border-radius: 2px; background: $accent; }
QSlider::handle:horizontal {
    width: 12px; height: 12px; margin: -5px 0px; border-radius: 7px;
    background: $handle; border: 1px solid $border_strong;
}
QSlider::handle:horizontal:hover, QSlider::handle:horizontal:focus {
    border: 1px solid $accent; background: $handle;
}
QSlider::sub-page:horizontal:disabled { background: $text_disabled; }
QSlider::handle:horizontal:disabled { background: $raised; border-color: $border; }

QProgressBar {
    background: $pressed; border: none; border-radius: 3px; max-height: 6px; min-height: 6px;
}
QProgressBar::chunk { background: $accent; border-radius: 3px; }
QProgressBar[busy="true"]::chunk { width: 4px; margin-right: 8px; border-radius: 2px; }

QScrollBar:vertical { background: transparent; width: 10px; margin: 0px; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0px; }
QScrollBar::handle { background: $scrollbar; border-radius: 3px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 28px; }
QScrollBar::handle:horizontal { min-width: 28px; }
QScrollBar::handle:hover { background: $border_strong; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0px; height: 0px; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QAbstractScrollArea::corner { background: transparent; border: none; }

QMenuBar { background: $window; }
QMenuBar::item { padding: 4px 8px; background: transparent; border-radius: 4px; }
QMenuBar::item:selected { background: $hover; }
QMenu { background: $panel; border: 1px solid $border_strong; padding: 4px; }
QMenu::item { padding: 4px 24px 4px 12px; border-radius: 4px; }
QMenu::item:selected { background: $selection; color: $selection_text; }
QMenu::item:disabled { color: $text_disabled; background: transparent; }
QMenu::icon { padding-left: 8px; }
QMenu::indicator { width: 12px; height: 12px; left: 6px; }
QMenu::indicator:checked { image: url($image_check_menu); }
QMenu::right-arrow { image: url($image_right); width: 12px; height: 12px; right: 4px; }
QMenu::separator { height: 1px; background: $border; margin: 4px 8px; }

QTabWidget::pane { border: none; }
QTabBar { background: transparent; qproperty-drawBase: 0; }
QTabBar::tab {
    background: transparent; color: $text_muted; padding: 6px 12px; border: none;
    border-bottom: 2px solid transparent;
}
QTabBar[tight="true"]::tab { padding: 6px 8px; }
QTabBar::tab:hover { color: $text; }
QTabBar::tab:selected { color: $text; border-bottom: 2px solid $accent; }
QTabBar::tab:focus { background: $hover; }

QListView, QTreeView, QTableView {
    background: $panel; alternate-background-color: $raised; border: 1px solid $border;
    border-radius: 4px; outline: none; selection-background-color: $selection;
    selection-color: $selection_text; gridline-color: $border;
}
QListView:focus, QTreeView:focus, QTableView:focus { border-color: $accent; }
QListView[bare="true"]:focus, QTreeView[bare="true"]:focus { border: none; }
QListView::item, QTreeView::item { padding: 4px 8px; border-radius: 4px; }
QListView::item:hover, QTreeView::item:hover { background: $hover; }
QListView::item:selected, QTreeView::item:selected {
    background: $selection; color: $selection_text;
}
QTableView[padded="true"]::item { padding: 3px 5px; }  /* + 3px of Qt: as the headings */
QTreeView[padded="true"]::item { padding: 4px 5px; }
QHeaderView { background: $raised; border: none; }
QHeaderView::section {
    background: $raised; color: $text_muted; border: none; padding: 4px 8px;
    border-bottom: 1px solid $border; border-right: 1px solid $border;
}
QTableCornerButton::section { background: $raised; border: none; }

QSplitter::handle { background: transparent; }
QSplitter::handle:horizontal { width: 8px; }
QSplitter::handle:vertical { height: 8px; }
QSplitter::handle:hover { background: $border; }
QGroupBox {
    border: 1px solid $border; border-radius: 6px; margin-top: 10px; padding: 10px 8px 8px;
}
QGroupBox::title { subcontrol-origin: margin; left: 10px; padding: 0px 4px; color: $text_muted; }
QStatusBar { background: $window; color: $text_muted; }
QStatusBar::item { border: none; }
QDockWidget { titlebar-close-icon: none; }
QDockWidget::title { background: $window; padding: 4px 8px; }
""")


def stylesheet(table: Theme, images: Path) -> str:
    """The stylesheet of `table`; writes the pictures that it names into folder `images`."""
    names = msgspec.structs.asdict(table)
    for name, (color, path) in _IMAGES.items():
        file = images / f"{table.mode}-{name}.svg"
        file.write_text(_SVG.format(path=path, color=table.value(color)), encoding="utf-8")
        names[f"image_{name}"] = f'"{file.as_posix()}"'
    line = QFontMetrics(ui_font()).height()
    return _TEMPLATE.substitute(
        names,
        small=point_size("small"),
        large=point_size("large"),
        line=max(18, line),
        icon=scaled(16),
        tool=max(16, line - 6),  # with its padding hardly higher than a line of text
        field=max(20, line + 2),
        mono=", ".join(f'"{family}"' for family in mono_font().families()),
        handle=table.panel if not table.is_dark else table.text,
    )
