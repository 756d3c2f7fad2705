from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from atom_lite.errors import ConfigError, RequestError
from atom_lite.text.checkpoint_files import TokenizerFiles
from atom_lite.text.tokenizer import Tokenizer
from tests.fakes.vocabularies import (
    NASTY_TEXTS,
    byte_fallback_tokenizer,
    metaspace_tokenizer,
    smollm_gguf,
    smollm_tokenizer,
)


def test_special_tokens_of_the_default_model():
    tokenizer = smollm_tokenizer()
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert [tokenizer.is_special(i) for i in (0, 2, 16, 17)] == [True, True, True, False]


# ---------------------------------------------------------------- encode


@pytest.mark.parametrize("text", ["\ud83d", "ok \udc00 then", "a" * 1000 + "\udfff"])
def test_a_lone_surrogate_is_the_clients_fault(text):
    with pytest.raises(RequestError, match="surrogate"):
        smollm_tokenizer().encode(text, add_special_tokens=False)


def test_nul_does_not_cut_the_prompt():
    tokenizer = smollm_tokenizer()
    whole = tokenizer.encode("a\x00b", add_special_tokens=False)
    assert len(whole) > len(tokenizer.encode("a", add_special_tokens=False))
    assert tokenizer.decode(whole) == "a\x00b"


def test_other_threads_run_while_a_long_text_is_encoded():
    text = "words and 123 more. " * 5_000
    tokenizer = smollm_tokenizer()
    span = {}

    def encode():
        span["start"] = time.perf_counter()
        tokenizer.encode(text, add_special_tokens=False)
        span["end"] = time.perf_counter()

    thread = threading.Thread(target=encode)
    stamps = []
    thread.start()
    while thread.is_alive():
        stamps.append(time.perf_counter())
    inside = [stamp for stamp in stamps if span["start"] < stamp < span["end"]]
    assert len(inside) > 10


# ---------------------------------------------------------------- decode


@pytest.mark.parametrize("bad", [-1, 49152, 10**12])
def test_an_id_outside_the_vocabulary_is_named_with_the_limit(bad):
    for call in (
        lambda: smollm_tokenizer().decode([5, bad]),
        lambda: smollm_tokenizer().token_bytes(bad),
    ):
        with pytest.raises(RequestError, match=rf"{bad} .*0 to 49151"):
            call()


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=30))
def test_joined_token_bytes_are_the_text(ids):
    tokenizer = smollm_tokenizer()
    joined = b"".join(tokenizer.token_bytes(i) for i in ids)
    assert joined.decode("utf-8", "replace") == tokenizer.decode(ids, skip_special_tokens=False)


def test_token_bytes_are_exact_for_parts_of_characters():
    tokenizer = smollm_tokenizer()
    ids = tokenizer.encode(" 😀", add_special_tokens=False)
    assert [tokenizer.token_bytes(i) for i in ids] == [bytes([32, 240, 159, 152]), bytes([128])]


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_sentencepiece_text_comes_back(text):
    tokenizer = byte_fallback_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(ids) == text == tokenizer.backend.decode(ids)


def test_a_decoder_of_another_kind_is_asked_for_the_whole():
    tokenizer = metaspace_tokenizer()
    assert tokenizer.pieces is None
    ids = tokenizer.encode("ab cd", add_special_tokens=False)
    assert tokenizer.decode(ids) == "ab cd"
    assert tokenizer.token_bytes(ids[-1]) == b"d"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Replace("a", "b"), decoders.Fuse()]),
        decoders.WordPiece(),
        None,
    ],
)
def test_decoders_that_do_not_work_token_by_token_are_told_apart(decoder):
    backend = Backend(models.BPE({"a": 0, "b": 1}, []))
    if decoder is not None:
        backend.decoder = decoder
    tokenizer = Tokenizer(TokenizerFiles(backend=backend))
    assert tokenizer.pieces is None
    assert tokenizer.decode([0, 1]) == backend.decode([0, 1])


# ---------------------------------------------------------------- checkpoints


def write_checkpoint(directory, *, config=None, template_file=None):
    """A model directory made from the byte-fallback vocabulary."""
    byte_fallback_tokenizer().backend.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if template_file is not None:
        (directory / "chat_template.jinja").write_text(template_file)
    return directory


def test_a_directory_is_read_with_its_config(tmp_path):
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
        "chat_template": "{{ messages }}",
        "model_max_length": 4096,
    }
    tokenizer = Tokenizer.from_checkpoint(write_checkpoint(tmp_path, config=config))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.chat_template == "{{ messages }}"
    info = tokenizer.info()
    assert info["tokenizer_class"] == "LlamaTokenizer"
    assert (info["bos_token"], info["eos_token"]) == ("<s>", "</s>")
    assert info["model_max_length"] == 4096
    json.dumps(info)


def test_special_tokens_may_come_from_their_own_file(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert Tokenizer.from_checkpoint(tmp_path).eos_token_id == 2


@pytest.mark.parametrize(
    ("flags", "ids"), [({}, [1]), ({"add_bos_token": False}, []), ({"add_bos_token": True}, [1])]
)
def test_the_config_decides_about_bos_when_it_says_so(tmp_path, flags, ids):
    config = {"bos_token": "<s>", "eos_token": "</s>", **flags}
    tokenizer = Tokenizer.from_checkpoint(write_checkpoint(tmp_path, config=config))
    assert tokenizer.encode("the", add_special_tokens=True)[:-1] == ids
    assert tokenizer.encode("the", add_special_tokens=False)[:1] != [1]


def test_tokens_that_only_the_config_lists_are_added(tmp_path):
    size = byte_fallback_tokenizer().vocab_size
    listed = {str(size): {"content": "<|end|>", "special": True}, "2": {"content": "</s>"}}
    config = {"eos_token": "<|end|>", "added_tokens_decoder": listed}
    tokenizer = Tokenizer.from_checkpoint(write_checkpoint(tmp_path, config=config))
    assert tokenizer.eos_token_id == size
    assert tokenizer.is_special(size)


def test_a_named_special_token_is_special_even_if_tokenizer_json_does_not_say_so(tmp_path):
    config = {"eos_token": "hello"}
    tokenizer = Tokenizer.from_checkpoint(write_checkpoint(tmp_path, config=config))
    assert tokenizer.is_special(tokenizer.eos_token_id)


def test_truncation_and_padding_of_tokenizer_json_are_switched_off(tmp_path):
    backend = Backend.from_str(byte_fallback_tokenizer().backend.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    ids = Tokenizer.from_checkpoint(tmp_path).encode("hello the and he", add_special_tokens=False)
    assert 4 < len(ids) < 64


def test_a_template_file_goes_before_the_config(tmp_path):
    config = {
        "chat_template": [
            {"name": "default", "template": "old"},
            {"name": "tool_use", "template": "tools"},
        ]
    }
    write_checkpoint(tmp_path, config=config, template_file="new")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("rag")
    tokenizer = Tokenizer.from_checkpoint(tmp_path)
    assert tokenizer.chat_templates == {"default": "new", "tool_use": "tools", "rag": "rag"}


def test_override_replaces_the_tokenizer_but_not_a_missing_template(tmp_path):
    write_checkpoint(tmp_path)
    for override in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = Tokenizer.from_checkpoint(smollm_gguf(), override=override)
        assert tokenizer.vocab_size == byte_fallback_tokenizer().vocab_size
        assert "<|im_start|>" in tokenizer.chat_template
    (tmp_path / "chat_template.jinja").write_text("own")
    assert Tokenizer.from_checkpoint(smollm_gguf(), override=tmp_path).chat_template == "own"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, "", "no tokenizer"),
        ("tokenizer.json", "{", "cannot read the tokenizer"),
        ("tokenizer_config.json", "{}", "no tokenizer"),
        ("model.gguf", "GGML....", "not a readable GGUF"),
    ],
)
def test_a_checkpoint_without_a_usable_tokenizer_is_refused(tmp_path, name, content, message):
    path = tmp_path
    if name is not None:
        (tmp_path / name).write_text(content)
        path = tmp_path / name if name.endswith(".gguf") else tmp_path
    with pytest.raises(ConfigError, match=message):
        Tokenizer.from_checkpoint(path)


def test_a_broken_config_is_refused_with_its_name(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json must hold a JSON object"):
        Tokenizer.from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": [{"name": "default"}]},
        {"added_tokens_decoder": {"one": {"content": "x"}}},
        {"added_tokens_decoder": ["x"]},
    ],
)
def test_a_config_of_another_shape_is_refused(tmp_path, config):
    with pytest.raises(ConfigError, match="malformed"):
        Tokenizer.from_checkpoint(write_checkpoint(tmp_path, config=config))


def test_a_template_that_is_no_utf8_is_refused(tmp_path):
    write_checkpoint(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="malformed"):
        Tokenizer.from_checkpoint(tmp_path)


def test_a_directory_with_a_gguf_file_is_read(tmp_path):
    (tmp_path / "model.gguf").symlink_to(smollm_gguf())
    assert Tokenizer.from_checkpoint(tmp_path).vocab_size == 49152


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        Tokenizer.from_checkpoint(tmp_path / "nowhere")


# ---------------------------------------------------------------- the process


def test_no_heavy_library_is_imported():
    script = (
        "import sys; from pathlib import Path\n"
        "from atom_lite.text.tokenizer import Tokenizer\n"
        "from atom_lite.text import chat_template, output\n"
        "t = Tokenizer.from_checkpoint(Path(sys.argv[1]))\n"
        "c = chat_template.ChatTemplate.from_tokenizer(t)\n"
        "ids = t.encode(c.render([{'role': 'user', 'content': 'hi'}]), add_special_tokens=False)\n"
        "o = output.OutputText(t, ids, stops=['x'])\n"
        "assert o.push(ids).text + o.finish().text\n"
        "print(sorted({'torch', 'transformers', 'xgrammar', 'numpy', 'gguf'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, str(smollm_gguf())]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_vocabulary_has_the_bytes_of_text_tokens_only():
    tokenizer = smollm_tokenizer()
    size = tokenizer.vocab_size + 2  # a model's logits may be padded
    vocabulary = tokenizer.vocabulary(size)
    assert len(vocabulary) == size
    assert vocabulary[-2:] == [b"", b""]
    assert {i for i, piece in enumerate(vocabulary[:-2]) if not piece} == set(
        tokenizer.special_token_ids
    )
    ids = tokenizer.encode(" Zoë 😀", add_special_tokens=False)
    assert b"".join(vocabulary[i] for i in ids) == " Zoë 😀".encode()


def test_tokenizer_without_bytes_for_each_token_has_no_vocabulary():
    with pytest.raises(ConfigError, match="bytes"):
        metaspace_tokenizer().vocabulary(4)
