"""What a saved latency model is bound to."""

from __future__ import annotations

import dataclasses

from atom_lite.config import Config, ModelConfig
from atom_lite.engine import assembly
from tests.unit.engine.test_agreement import INFO


def test_a_profile_belongs_to_so_many_cpus_unless_a_flag_says_how_many_threads() -> None:
    config = Config(model=ModelConfig(model="tiny"))
    assert assembly._fingerprint(config, INFO).num_threads == len(assembly.usable_cpus())
    three = dataclasses.replace(config, model=ModelConfig(model="tiny", threads=3))
    assert assembly._fingerprint(three, INFO).num_threads == 3
