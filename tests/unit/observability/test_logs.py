from __future__ import annotations

import logging

import pytest

from atom_lite.observability.logs import configure_logging


@pytest.fixture(autouse=True)
def _restore_root_logger():
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def test_level_and_format_hold_for_every_logger(capsys):
    configure_logging("warning")
    logging.getLogger("atom_lite.some.part").info("hidden")
    logging.getLogger("uvicorn.error").warning("shown %d", 1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("WARNING ")
    assert line.endswith(" uvicorn.error: shown 1")


def test_configuring_twice_does_not_double_the_lines(capsys):
    configure_logging("info")
    configure_logging("info")
    logging.getLogger("atom_lite").info("once")
    assert capsys.readouterr().err.count("once") == 1
