"""Specs out of config.json: both generations of the format, every trait, every refusal."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atom_lite.errors import ConfigError
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.spec import ModelSpec, load_generation_defaults, load_spec

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
QWEN_WINDOW = {
    "architectures": ["Qwen2ForCausalLM"],
    "sliding_window": 32,
    "use_sliding_window": True,
}


def checkpoint(directory: Path, config: dict[str, Any], **files: Any) -> Checkpoint:
    for name, content in {"config": config, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return Checkpoint(path=directory, kind="config", name="tiny")


def spec_of(directory: Path, **changes: Any) -> ModelSpec:
    return load_spec(checkpoint(directory, LLAMA | changes))


def test_sizes_and_defaults(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert (spec.hidden_size, spec.num_layers, spec.num_heads) == (64, 4, 8)
    assert (spec.num_kv_heads, spec.group_size, spec.head_size) == (2, 4, 8)
    assert (spec.rope.theta, spec.rope.type) == (10000.0, "default")
    assert spec.layer_windows == (None,) * 4
    assert not spec.tie_word_embeddings
    assert not spec.attention_bias
    assert spec.eos_token_ids == ()


def test_llama_2_has_as_many_kv_heads_as_heads(tmp_path: Path) -> None:
    assert spec_of(tmp_path, num_key_value_heads=None).num_kv_heads == 8


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("type_key", ["rope_type", "type"])
def test_rope_scaling_in_both_generations(tmp_path: Path, key: str, type_key: str) -> None:
    scaling = {
        type_key: "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta = {"rope_theta": 5e5}
    changes = {key: scaling, **theta} if key == "rope_scaling" else {key: scaling | theta}
    rope = spec_of(tmp_path, **changes).rope
    assert (rope.type, rope.theta, rope.factor) == ("llama3", 5e5, 8.0)
    assert rope.original_max_positions == 8192


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "yarn", "factor": 4.0}, 8192),
        ({"rope_type": "linear", "factor": 2.0}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 256}, 2048),
        ({"rope_type": "default"}, 2048),
    ],
)
def test_scaling_stretches_the_longest_sequence(
    tmp_path: Path, scaling: dict[str, Any], longest: int
) -> None:
    assert spec_of(tmp_path, rope_scaling=scaling).max_position_embeddings == longest


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_windows_start_at_a_layer_and_need_their_switch(
    tmp_path: Path, architecture: str
) -> None:
    window = {"architectures": [architecture], "sliding_window": 32, "max_window_layers": 3}
    assert spec_of(tmp_path, **window).layer_windows == (None,) * 4
    on = spec_of(tmp_path, **window, use_sliding_window=True)
    assert on.layer_windows == (None, None, None, 32)
    types = ["sliding_attention", "full_attention"] * 2
    typed = spec_of(tmp_path, **window, use_sliding_window=True, layer_types=types)
    assert typed.layer_windows == (32, None, 32, None)


def test_traits_of_the_families(tmp_path: Path) -> None:
    mistral = spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=16)
    assert mistral.layer_windows == (16,) * 4
    later = spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None)
    assert later.layer_windows == (None,) * 4
    qwen2 = spec_of(tmp_path, architectures=["Qwen2ForCausalLM"])
    assert (qwen2.attention_bias, qwen2.attention_output_bias) == (True, False)
    qwen3 = spec_of(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=32)
    assert (qwen3.qk_norm, qwen3.attention_bias, qwen3.head_size) == (True, False, 32)


def test_eos_ids_of_both_files_are_joined(tmp_path: Path) -> None:
    config = LLAMA | {"eos_token_id": 5, "bos_token_id": 1}
    spec = load_spec(checkpoint(tmp_path, config, generation_config={"eos_token_id": [7, 5]}))
    assert (spec.eos_token_ids, spec.bos_token_id) == ((5, 7), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; supported are"),
        ({"architectures": None}, r"architecture \(none\) is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization 'awq'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_key_value_heads": 3}, "8 attention heads do not divide into 3 KV heads"),
        ({"head_dim": 7}, "head size 7"),
        ({"layer_types": ["full_attention"], **QWEN_WINDOW}, "windows of 1 layers in a model of 4"),
    ],
)
def test_the_unsupported_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(tmp_path, **changes)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_an_unreadable_config_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_spec(Checkpoint(path=tmp_path, kind="config", name="tiny"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", "many"),
        ("hidden_size", 0),
        ("num_attention_heads", 0),
        ("num_hidden_layers", True),
        ("num_key_value_heads", -2),
        ("head_dim", 8.5),
        ("max_position_embeddings", "2048"),
        ("sliding_window", "wide"),
        ("architectures", "LlamaForCausalLM"),
        ("rms_norm_eps", "small"),
        ("rope_theta", [10000]),
        ("rope_theta", float("inf")),
        ("rope_scaling", "linear"),
        ("rope_scaling", {"type": "linear", "factor": "two"}),
        ("quantization_config", "awq"),
        ("layer_types", 4),
        ("eos_token_id", "</s>"),
        ("eos_token_id", [2, "</s>"]),
        ("torch_dtype", 16),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        spec_of(tmp_path, **{name: value})


OPTIONAL = (
    *("head_dim", "sliding_window", "max_window_layers", "layer_types", "hidden_act"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    *("eos_token_id", "quantization_config", "dtype", "torch_dtype"),
)
GARBAGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 3) | st.text(max_size=2), max_size=3),
    st.dictionaries(
        st.sampled_from(["type", "factor", "rope_theta", "original_max_position_embeddings"]),
        st.sampled_from(["linear", "yarn", 1, 0, -1, 2.5, None, [], {}]),
    ),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    base=st.sampled_from([{}, QWEN_WINDOW, {"architectures": ["MistralForCausalLM"]}]),
    name=st.sampled_from([*LLAMA, *OPTIONAL]),
    value=GARBAGE,
)
def test_any_garbage_in_a_config_gives_a_spec_or_a_config_error(
    tmp_path: Path, base: dict[str, Any], name: str, value: Any
) -> None:
    with contextlib.suppress(ConfigError):
        spec_of(tmp_path, **base | {name: value})


def test_null_in_a_config_means_the_same_as_absence(tmp_path: Path) -> None:
    window = QWEN_WINDOW | {"max_window_layers": None, "layer_types": None}
    unset = {key: value for key, value in window.items() if value is not None}
    assert spec_of(tmp_path, **window) == spec_of(tmp_path, **unset)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": "hot"}, {"top_p": float("nan")}, {"top_k": True}, {"max_new_tokens": 0}],
)
def test_an_unusable_generation_default_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {next(iter(wrong))} is"):
        load_generation_defaults(checkpoint(tmp_path, LLAMA, generation_config=wrong))


def test_generation_defaults_are_the_makers_sampling_values(tmp_path: Path) -> None:
    made = checkpoint(
        tmp_path,
        LLAMA,
        generation_config={
            "temperature": 0.7,
            "top_k": 20,
            "do_sample": True,
            "top_p": None,
            "max_new_tokens": 512,
        },
    )
    assert load_generation_defaults(made) == {
        "temperature": 0.7,
        "top_k": 20.0,
        "max_new_tokens": 512.0,
    }


def test_without_a_generation_config_there_are_no_defaults(
    tmp_path: Path, smollm2_gguf: Path
) -> None:
    assert load_generation_defaults(checkpoint(tmp_path, LLAMA)) == {}
    gguf = Checkpoint(path=smollm2_gguf, kind="gguf", name="SmolLM2")
    assert load_generation_defaults(gguf) == {}
