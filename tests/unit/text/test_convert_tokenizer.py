from __future__ import annotations

import json

import pytest

from atom_lite.errors import ConfigError
from atom_lite.text.byte_alphabet import spell
from atom_lite.text.tokenizer import Tokenizer


def write_slow_gpt2(directory):
    """A GPT-2 tokenizer in the old two-file form."""
    alphabet = {spell(bytes([byte])): byte for byte in range(256)}
    vocabulary = {**alphabet, "ab": 256, "<|endoftext|>": 257}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\na b\n")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (directory / "config.json").write_text('{"model_type": "gpt2"}')


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "atom_lite" / "tokenizers"


@pytest.mark.full
def test_a_slow_tokenizer_is_converted_once(tmp_path, cache):
    directory = tmp_path / "model"
    directory.mkdir()
    write_slow_gpt2(directory)
    tokenizer = Tokenizer.from_checkpoint(directory)
    assert tokenizer.encode("abc", add_special_tokens=False) == [256, ord("c")]
    (made,) = cache.iterdir()
    stamp = (made / "tokenizer.json").stat().st_mtime_ns
    assert Tokenizer.from_checkpoint(directory).decode([256]) == "ab"
    assert [
        (entry, (entry / "tokenizer.json").stat().st_mtime_ns) for entry in cache.iterdir()
    ] == [(made, stamp)]


@pytest.mark.full
def test_a_failed_conversion_names_the_directory_and_leaves_nothing(tmp_path, cache):
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be converted"):
        Tokenizer.from_checkpoint(tmp_path)
    assert list(cache.iterdir()) == []
