"""Keeps transformers out of the processes that run a model.

xgrammar imports it for two names of classes, of which nothing is used here: 0.8 s of CPU time and
70 MB at every start, on the cores that load the weights. So a process of ours that runs stages puts
an empty stand-in into its place before anything else is imported. Only for such a process: a
program that uses the engine in its own (`in_process`) may want the real one.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

_NAME = "transformers"


def stand_in_for_transformers() -> None:
    """Make `import transformers` give a module whose every name is an empty class."""
    module = types.ModuleType(_NAME, "A stand-in: this process does without the real package.")
    module.__spec__ = importlib.machinery.ModuleSpec(_NAME, None)
    module.__dict__["__getattr__"] = _empty_class
    sys.modules[_NAME] = module


def _empty_class(name: str) -> type:
    if name.startswith("__"):  # what the import system and `inspect` ask of any module
        raise AttributeError(name)
    return type(name, (), {})
