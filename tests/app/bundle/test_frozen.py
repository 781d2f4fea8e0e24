"""The executable of the self-contained build, as the program starts itself."""

from __future__ import annotations

import os
import subprocess
import sys

from app.bundle import frozen
from tests import ROOT


def run(*arguments: str, **environment: str) -> str:
    command = [sys.executable, frozen.__file__, *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


def test_it_runs_code_with_arguments_as_python_does() -> None:
    code = "import sys; print(sys.argv, __name__)"
    assert run("-P", "-S", "-c", code, "a", "b") == "['-c', 'a', 'b'] __main__\n"


def test_it_runs_the_main_function_of_a_module() -> None:
    assert "usage: app.cli.main" not in (told := run("-m", "app.cli.main", "--help"))
    assert told == run("--help") == run("-m", "app", "--help")


def test_started_programs_get_the_systems_libraries() -> None:
    code = "from os import environ as e; print(e.get('LD_LIBRARY_PATH'), len([*filter(ORIG, e)]))"
    code = code.replace("ORIG", "lambda name: name.endswith('PATH_ORIG')")
    build = {"LD_LIBRARY_PATH": "/build"}
    assert run("-c", code, **build, LD_LIBRARY_PATH_ORIG="/own") == "/own 0\n"
    assert run("-c", code, **build) == "None 0\n"


def test_the_program_started_again_finds_its_own_libraries() -> None:
    code = "import os; print(os.environ['PYINSTALLER_RESET_ENVIRONMENT'])"
    assert run("-c", code) == "1\n"
