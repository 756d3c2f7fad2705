"""The command lines of the servers that are compared, on one and the same model.

Each is started as its own documentation says for a CPU, with the flags that let it run every
workload: 32 requests at once, prompts of 7500 tokens, a prefix cache. `budget` bounds the tokens of
a step, the flag by which a server keeps streams going beside long prompts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.checkpoints import cache_directory, expanded_gguf, exported_model
from benchmarks.peers.environments import RECIPES
from benchmarks.peers.process import Launch, free_port
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
BUDGET_TOKENS = 2048  # of peers that take one, where no other is asked for
SEQUENCES = 32
KV_TOKENS = 32768  # of llama.cpp, which allocates them at start
FRONT = Path(__file__).with_name("openvino_front.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a server is to serve.

    Args:
        gguf: the model's file.
        dtype: the weights are expanded to it; None keeps them quantized.
        budget: most tokens of a step; None takes what suits throughput.
    """

    gguf: Path
    dtype: str | None
    budget: int | None = None


def atom_lite(model: Path, dtype: str | None, extra: Sequence[str] = ()) -> Launch:
    """This project's server."""
    port = free_port()
    command = (sys.executable, "-m", "atom_lite.serve", "--model", str(model))
    kind = () if dtype is None else ("--dtype", dtype)
    return Launch(
        name="atom_lite",
        command=(*command, *kind, "--host", "127.0.0.1", "--port", str(port), *extra),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE,
    )


def transformers_serve(model: Path, dtype: str, extra: Sequence[str] = ()) -> Launch:
    """`transformers serve` with continuous batching, its best mode for many requests."""
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    if not program.exists():
        raise LoadError(f"no transformers command beside {sys.executable}")
    command = (str(program), "serve", "--continuous-batching", "--device", "cpu", "--dtype", dtype)
    return Launch(
        name="transformers",
        command=(*command, "--host", "127.0.0.1", "--port", str(port), *extra, str(model)),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE,
    )


def _transformers(serving: Serving) -> Launch | None:
    if serving.dtype is None or serving.budget is not None:
        return None  # it expands every quantized file, and its prefill has no budget
    return transformers_serve(exported_model(serving.gguf, cache_directory()), serving.dtype)


def _vllm(serving: Serving) -> Launch | None:
    """The CPU build of vLLM; it reads no GGUF there."""
    if serving.dtype is None:
        return None
    port = free_port()
    model = exported_model(serving.gguf, cache_directory())
    return Launch(
        name="vllm",
        command=(
            *(str(RECIPES["vllm"].program("vllm")), "serve", str(model)),
            *("--dtype", serving.dtype, "--generation-config", "vllm"),
            *("--max-num-seqs", str(SEQUENCES)),
            *("--max-num-batched-tokens", str(serving.budget or BUDGET_TOKENS)),
            *("--host", "127.0.0.1", "--port", str(port)),
        ),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE
        | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        start_seconds=600.0,  # it compiles
    )


def _llama(serving: Serving) -> Launch | None:
    port = free_port()
    batch = serving.budget or BUDGET_TOKENS
    return Launch(
        name="llama",
        command=(
            *(str(RECIPES["llama"].program("llama-server")), "--model", str(_file(serving))),
            *("--ctx-size", str(KV_TOKENS), "--parallel", str(SEQUENCES), "--kv-unified"),
            *("--batch-size", str(batch), "--ubatch-size", str(min(batch, 512))),
            *("--host", "127.0.0.1", "--port", str(port)),
        ),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE,
    )


def _openvino(serving: Serving) -> Launch | None:
    """OpenVINO GenAI is a library; `openvino_front.py` puts HTTP before it."""
    port = free_port()
    tokenizer = exported_model(serving.gguf, cache_directory())
    return Launch(
        name="openvino",
        command=(
            *(str(RECIPES["openvino"].program("python")), "-P", str(FRONT)),
            *("--model", str(_file(serving)), "--tokenizer", str(tokenizer)),
            *("--max-num-batched-tokens", str(serving.budget or BUDGET_TOKENS)),
            *("--port", str(port)),
        ),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE,
    )


def _file(serving: Serving) -> Path:
    if serving.dtype is None:
        return serving.gguf
    return expanded_gguf(serving.gguf, cache_directory(), serving.dtype)


PEERS: dict[str, Callable[[Serving], Launch | None]] = {
    "openvino": _openvino,
    "vllm": _vllm,
    "llama": _llama,
    "transformers": _transformers,
}


def peer(name: str, serving: Serving) -> Launch | None:
    """A peer's launch; None where it cannot serve that.

    Raises:
        LoadError: it is not installed.
    """
    return PEERS[name](serving)
