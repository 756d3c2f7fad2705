"""The stand-in, in processes of its own: sys.modules belongs to the whole test run."""

from __future__ import annotations

import subprocess
import sys

XGRAMMAR = """
import sys
from atom_lite.engine.without_transformers import stand_in_for_transformers
stand_in_for_transformers()
from atom_lite.worker.grammar_matchers import TemplateLoader
TemplateLoader([b"a", b"b", b""], [2])
from xgrammar import CompiledGrammar, GrammarMatcher
assert not [name for name in sys.modules if name.startswith("transformers.")]
"""


def test_the_grammar_libraries_load_without_transformers() -> None:
    subprocess.run([sys.executable, "-c", XGRAMMAR], check=True)
