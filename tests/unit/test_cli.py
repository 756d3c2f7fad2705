from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from atom_lite import cli
from atom_lite.config import (
    ChunkingConfig,
    Config,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    ServerConfig,
)
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_no_arguments_give_the_defaults() -> None:
    assert cli.parse_config([]) == Config()


def test_dashes_and_underscores_are_the_same_flag() -> None:
    dashed = cli.parse_config(["--max-model-len", "4096", "--served-model-name=a_b"])
    scored = cli.parse_config(["--max_model_len", "4096", "--served_model_name=a_b"])
    assert dashed == scored
    assert dashed.model == ModelConfig(max_model_len=4096, served_model_name=("a_b",))


ATOM_GUIDE = (
    "--model some/model --enable-dynamic-chunking --enable_chunked_prefill --max-model-len 8192 "
    "--max-num-batched-tokens 2048 --pipeline-parallel-size 2 "
    "--dynamic-chunking-smooth-factor 0.75 --dynamic-chunking-min-chunk-size 256"
)


@pytest.mark.parametrize(
    "line",
    [
        ATOM_GUIDE,
        ATOM_GUIDE.replace("-dynamic-chunking-", "-dynamic_chunking_").replace("max-", "max_"),
        ATOM_GUIDE.replace("--pipeline-parallel-size", "-pp"),
    ],
)
def test_the_command_line_of_atoms_guide_is_taken_as_it_is(line: str) -> None:
    config = cli.parse_config(line.split())
    assert config.model == ModelConfig(model="some/model", max_model_len=8192)
    assert config.scheduler == SchedulerConfig(max_num_batched_tokens=2048)
    assert config.parallel == ParallelConfig(pipeline_parallel_size=2)
    assert config.chunking == ChunkingConfig(
        enable_dynamic_chunking=True,
        dynamic_chunking_smooth_factor=0.75,
        dynamic_chunking_min_chunk_size=256,
    )


def test_the_role_of_a_decode_instance_is_taken() -> None:
    role = '{"kv_connector": "MooncakeConnector", "kv_role": "kv_consumer"}'
    assert cli.parse_config(["--kv-transfer-config", role]).transfer.kv_role == "kv_consumer"
    assert Config().transfer.kv_role is None


def test_a_decode_instance_of_one_stage_may_share_the_flags_of_prefill_instances() -> None:
    role = ("--kv-transfer-config", '{"kv_role": "kv_consumer"}')
    config = cli.parse_config(["--enable-dynamic-chunking", "-pp", "1", *role])
    assert config.parallel.pipeline_parallel_size == 1


def test_model_is_positional_or_a_flag_but_not_both() -> None:
    assert cli.parse_config(["path/to/model"]).model.model == "path/to/model"
    with pytest.raises(ConfigError, match="twice"):
        cli.parse_config(["one", "--model", "other"])


@pytest.mark.parametrize(
    ("text", "count"), [("8192", 8192), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("2G", 2 << 30)]
)
def test_counts_take_suffixes(text: str, count: int) -> None:
    assert cli.parse_config(["--kv-cache-memory-bytes", text]).cache.kv_cache_memory_bytes == count


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--port", "65536"], "--port 65536: must be at most 65535"),
        (["--port", "x"], "'x'"),
        (["--block-size", "0"], "must be at least 1"),
        (["--gpu-memory-utilization", "nan"], "must be at least"),
        (["--dtype", "int3"], "int3"),
        (["--nonsense"], "unrecognized argument: --nonsense"),
        (["--enable-lora"], "LoRA is out of scope"),
        (["--quantization", "awq"], "awq"),
        (["--max-num-seqs", "16", "--max-num-batched-tokens", "15"], "--max-num-seqs (16)"),
        (["--enable-dynamic-chunking", "-pp", "1"], "--pipeline-parallel-size 1"),
        (["--enable-dynamic-chunking", "--no-enable-chunked-prefill"], "--enable-chunked-prefill"),
        (["--enable-dynamic-chunking", "--batching-policy", "orca"], "runs whole prompts"),
        (["--batching-policy", "unified", "--no-enable-hybrid-batching"], "not with unified"),
        (["--batching-policy", "fifo"], "invalid choice: 'fifo'"),
        (["--capacity-policy", "tight"], "invalid choice: 'tight'"),
        (["--dynamic-chunking-smooth-factor", "1.5"], "must be at most 1"),
        (["--dynamic_chunking_smooth_factor", "-0.1"], "must be at least 0"),
        (["--kv-transfer-config", "kv_consumer"], "is not JSON"),
        (["--override-generation-config", "top_k=5"], "is not JSON"),
        (["--override-generation-config", "[5]"], "must be a JSON object"),
        (["--logprobs-mode", "processed_logprobs"], "processed_logprobs"),
        (["--max-logprobs", "-2"], "must be at least -1"),
        (["--kv-transfer-config", '["kv_consumer"]'], "must be a JSON object"),
        (["--kv-transfer-config", '{"kv_role": "none"}'], "must be an object whose kv_role is"),
        (
            ["--kv-transfer-config", '{"kv_role": "kv_producer"}'],
            "the role kv_producer is not supported yet",
        ),
        (
            ["--kv_transfer_config", '{"kv_role": "kv_both"}'],
            "the role kv_both is not supported yet",
        ),
        (["--api-key", ""], "--api-key: must not be empty"),
        (["--api-key", "a b"], "--api-key: a key with spaces"),
        (["--api-key", "good", "bad\n"], "--api-key: a key with spaces"),
        (["--host", ""], "--host: must not be empty"),
        (["--served-model-name", "one", ""], "--served-model-name: must not be empty"),
        (["--model", "caf\udce9"], "is not valid UTF-8"),
        (["--shutdown-timeout", "inf"], "must be a finite number"),
        (["--seed", "9223372036854775808"], "must be less than"),
        (["--seed", "-9223372036854775808000"], "must be less than"),
    ],
)
def test_mistakes_name_the_flag_and_the_limit(argv: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        cli.parse_config(argv)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "preset.toml"
    path.write_text(
        '[scheduler]\nmax_num_seqs = 4\nscheduling_policy = "priority"\n'
        '[server]\nshutdown_timeout = 3\napi_key = ["a", "b"]\n'
    )
    config = cli.parse_config(["--config", str(path), "--max-num-seqs", "8"])
    assert config.scheduler == SchedulerConfig(max_num_seqs=8, scheduling_policy="priority")
    assert config.server == ServerConfig(shutdown_timeout=3.0, api_key=("a", "b"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[nonsense]\n", "unknown table [nonsense]"),
        ("[server]\nnonsense = 1\n", "unknown key server.nonsense"),
        ('[server]\nport = "80"\n', "expected int, got '80'"),
        ("[cache]\nenable_prefix_caching = 1\n", "expected bool"),
        ("[server]\nport = 70000\n", "--port 70000"),
        ("not toml", "preset.toml"),
        ("port = 1\n", "unknown table [port]"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "preset.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        cli.parse_config(["--config", str(path)])
    assert named in str(raised.value)


def test_api_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOM_LITE_API_KEY", "secret")
    assert cli.parse_config([]).server.api_key == ("secret",)
    assert cli.parse_config(["--api-key", "flag"]).server.api_key == ("flag",)
    monkeypatch.setenv("ATOM_LITE_API_KEY", " ")
    with pytest.raises(ConfigError, match="api-key"):
        cli.parse_config([])


def test_help_names_every_setting_with_its_default() -> None:
    text = " ".join(cli.build_parser().format_help().split())
    for table in (getattr(Config(), field.name) for field in dataclasses.fields(Config)):
        for setting in dataclasses.fields(table):
            assert "--" + setting.name.replace("_", "-") in text
            assert "Default" in setting.metadata["help"] or setting.default not in (None, ())


def test_usage_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert cli.main(["nonsense"]) == 2
    assert cli.main(["serve", "--port", "-1"]) == 2
    assert "--port -1: must be at least 0" in capsys.readouterr().err
