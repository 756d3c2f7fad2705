from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.api.serving import make_tokenizer

if TYPE_CHECKING:
    from atom_lite.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
