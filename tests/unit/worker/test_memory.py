import logging

import pytest

from atom_lite.config import CacheConfig
from atom_lite.errors import ConfigError
from atom_lite.worker.memory import (
    CPU_MOST_BYTES,
    UNLIMITED_BYTES,
    PoolDemand,
    cgroup_headroom,
    check_model_len,
    fit_model_len,
    num_pool_blocks,
)

GIB = 1 << 30


def demand(**changes):
    values = {
        "bytes_per_block": 1 << 20,
        "max_num_seqs": 64,
        "max_model_len": 8192,
        "available_bytes": 4 * GIB,
        "on_cpu": True,
    }
    return PoolDemand(**(values | changes))


def test_pool_on_a_cpu_takes_a_quarter_of_free_memory():
    assert num_pool_blocks(CacheConfig(), demand()) == 1024


def test_pool_on_a_cpu_is_at_most_2_gib():
    roomy = demand(available_bytes=100 * GIB)
    assert num_pool_blocks(CacheConfig(), roomy) == CPU_MOST_BYTES // (1 << 20)


def test_pool_on_a_cpu_holds_no_more_than_all_sequences_can_fill():
    few = demand(max_num_seqs=2, max_model_len=100)
    assert num_pool_blocks(CacheConfig(), few) == 2 * 7


def test_pool_on_an_accelerator_takes_its_share_of_what_the_weights_left():
    cache = CacheConfig(gpu_memory_utilization=0.5)
    few = demand(on_cpu=False, available_bytes=80 * GIB, max_num_seqs=1, max_model_len=16)
    assert num_pool_blocks(cache, few) == 40 * 1024


def test_block_override_wins_over_memory_flag():
    cache = CacheConfig(num_gpu_blocks_override=7, kv_cache_memory_bytes=GIB)
    assert num_pool_blocks(cache, demand()) == 7


def test_memory_flag_is_rounded_down_to_whole_blocks():
    cache = CacheConfig(kv_cache_memory_bytes=(3 << 20) + 5)
    assert num_pool_blocks(cache, demand()) == 3


@pytest.mark.parametrize(
    ("cache", "changes", "words"),
    [
        (CacheConfig(num_gpu_blocks_override=0), {}, "--num-gpu-blocks-override 0"),
        (CacheConfig(kv_cache_memory_bytes=1000), {}, "--kv-cache-memory-bytes 1000"),
        (CacheConfig(), {"available_bytes": 100}, "no memory for the KV cache: 100 bytes"),
        (CacheConfig(gpu_memory_utilization=1.5), {"on_cpu": False}, "utilization 1.5"),
    ],
)
def test_impossible_pool_is_a_config_error_with_the_value(cache, changes, words):
    with pytest.raises(ConfigError, match=words):
        num_pool_blocks(cache, demand(**changes))


def test_model_len_flag_above_the_pool_names_both_numbers():
    with pytest.raises(ConfigError, match=r"--max-model-len 100: .* 80 tokens"):
        fit_model_len(flag=100, model_limit=8192, num_blocks=5, block_size=16)


def test_implicit_model_len_is_lowered_to_the_pool_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert fit_model_len(flag=None, model_limit=8192, num_blocks=5, block_size=16) == 80
    assert "from 8192 to 80" in caplog.text


def test_model_len_that_fits_is_kept():
    assert fit_model_len(flag=80, model_limit=8192, num_blocks=5, block_size=16) == 80
    assert fit_model_len(flag=None, model_limit=64, num_blocks=5, block_size=16) == 64


def test_model_len_flag_is_bounded_by_the_model():
    assert check_model_len(None, 512) == 512
    assert check_model_len(512, 512) == 512
    with pytest.raises(ConfigError, match=r"--max-model-len 513: .* 512"):
        check_model_len(513, 512)
    with pytest.raises(ConfigError, match=r"--max-model-len 0"):
        check_model_len(0, 512)


def test_container_limit_counts_idle_page_cache_as_free(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert cgroup_headroom(tmp_path) == 400


def test_container_without_limit_leaves_the_machine_to_decide(tmp_path):
    assert cgroup_headroom(tmp_path) == UNLIMITED_BYTES
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\n")
    assert cgroup_headroom(tmp_path) == UNLIMITED_BYTES


def test_older_control_groups_are_read_too(tmp_path):
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("900\n")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 300\n")
    assert cgroup_headroom(tmp_path) == 400
