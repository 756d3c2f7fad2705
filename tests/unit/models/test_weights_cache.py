"""Expanded weights on disk: what is kept, what is noticed, and what a start does without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from safetensors.torch import load_file

from atom_lite.models import weights_cache
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.load_gguf import GgufWeights
from atom_lite.models.spec import load_spec
from atom_lite.models.weights_cache import CachedWeights, cached, entry_key
from tests.unit.models import gguf_files

if TYPE_CHECKING:
    from pathlib import Path

    from atom_lite.models.weights import WeightSource

CPU = torch.device("cpu")
PLENTY = 1 << 30
MATRIX = "model.layers.1.mlp.down_proj.weight"
NORM = "model.norm.weight"

STARTER = """
import logging, sys
from pathlib import Path
import torch
from tests.unit.models.test_weights_cache import open_weights
logging.basicConfig(level="WARNING")
print("ready", flush=True)
sys.stdin.readline()
source = open_weights(Path(sys.argv[1])).cached(1 << 30)
total = sum(source.read(name).double().sum().item() for name in source.shapes())
print(repr(total), flush=True)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "atom_lite" / "weights"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType.Q5_1,
    )


def open_weights(path: Path, dtype: torch.dtype = torch.float32) -> GgufWeights:
    spec = load_spec(Checkpoint(path=path, kind="gguf", name="tiny"))
    return GgufWeights(path, spec, dtype, CPU)


def check_equal(found: WeightSource, expected: WeightSource) -> None:
    assert found.shapes() == expected.shapes()
    for name in expected.shapes():
        assert torch.equal(found.read(name), expected.read(name)), name


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def the_entry(folder: Path) -> Path:
    (entry,) = entries(folder)
    return entry


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_comes_out_of_the_cache_is_what_the_checkpoint_expands_to(
    path: Path, folder: Path, dtype: torch.dtype
) -> None:
    for _ in range(2):  # writes it, then finds it
        source = open_weights(path, dtype).cached(PLENTY)
        assert isinstance(source, CachedWeights)
        check_equal(source, open_weights(path, dtype))
    assert [file.suffix for file in folder.iterdir() if file.name != "lock"] == [".safetensors"]


def test_an_entry_is_a_safetensors_file_of_the_matrices(path: Path, folder: Path) -> None:
    origin = open_weights(path, torch.bfloat16)
    origin.cached(PLENTY)
    tensors = load_file(the_entry(folder))
    assert tensors.keys() == {name for name, shape in origin.shapes().items() if len(shape) > 1}
    assert all(torch.equal(tensor, origin.read(name)) for name, tensor in tensors.items())


def test_a_second_start_does_not_expand_again(path: Path, folder: Path) -> None:
    open_weights(path).cached(PLENTY)

    class Unreadable(GgufWeights):
        def read(self, name: str) -> torch.Tensor:
            assert name == NORM
            return super().read(name)

    again = open_weights(path)
    source = Unreadable(path, again._spec, torch.float32, CPU).cached(PLENTY)
    source.read(MATRIX)
    source.read(NORM)  # too small to be kept


def test_a_file_that_changed_without_changing_size_or_date_is_expanded_anew(
    path: Path, folder: Path
) -> None:
    open_weights(path).cached(PLENTY)
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-300] ^= 0x55  # in the last tensor
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    check_equal(open_weights(path).cached(PLENTY), open_weights(path))
    assert len(entries(folder)) == 2


@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "header", "other"])
def test_an_entry_that_is_not_whole_is_written_anew(
    path: Path, folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    open_weights(path).cached(PLENTY)
    entry = the_entry(folder)
    whole = entry.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    damaged = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "longer": whole + bytes(64),
        "header": whole[:100] + b"\xff" * 8 + whole[108:],
        "other": whole[:8] + whole[8:start].replace(b"F32", b"F16") + whole[start:],
    }[damage]
    entry.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        check_equal(open_weights(path).cached(PLENTY), open_weights(path))
    assert "made anew" in caplog.text
    assert the_entry(folder).read_bytes() == whole


@pytest.mark.parametrize("where", [0.01, 0.5, 1.0])
def test_damage_inside_is_noticed_when_the_tensor_is_read(
    path: Path, folder: Path, caplog: pytest.LogCaptureFixture, where: float
) -> None:
    open_weights(path).cached(PLENTY)
    entry = the_entry(folder)
    whole = bytearray(entry.read_bytes())
    start = 8 + int.from_bytes(whole[:8], "little")
    whole[start + int((len(whole) - 1 - start) * where)] ^= 1
    entry.write_bytes(whole)
    with caplog.at_level(logging.WARNING):
        check_equal(open_weights(path).cached(PLENTY), open_weights(path))
    assert "is damaged" in caplog.text
    assert not entries(folder)
    open_weights(path).cached(PLENTY)
    assert the_entry(folder)


def test_a_folder_that_cannot_be_written_costs_a_warning(
    path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("not a folder")  # permissions would not stop a superuser
    with caplog.at_level(logging.WARNING):
        source = open_weights(path).cached(PLENTY)
    assert "going on without it" in caplog.text
    check_equal(source, open_weights(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="a superuser may write into a read-only folder")
def test_a_read_only_folder_costs_a_warning(
    path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    with caplog.at_level(logging.WARNING):
        source = open_weights(path).cached(PLENTY)
    assert "going on without it" in caplog.text
    check_equal(source, open_weights(path))


def test_a_limit_of_nothing_keeps_nothing(path: Path, folder: Path) -> None:
    origin = open_weights(path)
    assert origin.cached(0) is origin
    assert origin.cached(1000) is origin
    assert not folder.exists()


@pytest.mark.parametrize("quantization", [None, gguf.GGMLQuantizationType.Q4_1])
def test_what_is_expanded_as_quickly_as_it_is_read_is_not_kept(
    tmp_path: Path, folder: Path, quantization: gguf.GGMLQuantizationType | None
) -> None:
    quick = gguf_files.write(
        tmp_path / "p.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=quantization,
    )
    origin = open_weights(quick)
    assert origin.cached(PLENTY) is origin
    assert not folder.exists()


def test_the_entry_that_was_not_used_for_longest_makes_room(path: Path, folder: Path) -> None:
    origin = open_weights(path)

    def open_entry(key: str, limit_bytes: int) -> None:
        cached(origin, key, torch.float32, folder=folder, limit_bytes=limit_bytes)

    open_entry("a", PLENTY)
    size = the_entry(folder).stat().st_size
    open_entry("b", PLENTY)
    for age, key in enumerate("ba"):
        os.utime(folder / f"{key}.safetensors", (age, age))
    open_entry("b", PLENTY)  # used again: now "a" is the older one
    open_entry("c", 2 * size + size // 2)
    assert [entry.stem for entry in entries(folder)] == ["b", "c"]


def test_what_a_killed_writer_left_is_removed(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "old.unfinished").write_bytes(b"half")
    open_weights(path).cached(PLENTY)
    assert not list(folder.glob("*.unfinished"))


def test_while_another_writes_the_checkpoint_is_read(path: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    with weights_cache._sole_writer(folder) as is_sole:
        assert is_sole
        origin = open_weights(path)
        assert origin.cached(PLENTY) is origin
    assert isinstance(open_weights(path).cached(PLENTY), CachedWeights)


def test_the_name_depends_on_everything_that_goes_in(path: Path) -> None:
    data = open_weights(path)._file.data
    keys = {
        entry_key(data, torch.float32, True, 4, 2),
        entry_key(data, torch.bfloat16, True, 4, 2),
        entry_key(data, torch.float32, False, 4, 2),
        entry_key(data, torch.float32, True, 2, 4),
    }
    assert len(keys) == 4


def test_processes_that_start_at_once_read_the_same(path: Path, folder: Path) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    pipes = [(process.stdin, process.stdout) for process in starters]
    assert all(stdout and stdout.readline() == "ready\n" for _, stdout in pipes)
    for stdin, _ in pipes:
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()
    totals = {process.communicate(timeout=250)[0] for process in starters}
    assert all(process.returncode == 0 for process in starters)
    source = open_weights(path)
    expected = sum(source.read(name).double().sum().item() for name in source.shapes())
    assert totals == {f"{expected!r}\n"}
    check_equal(open_weights(path).cached(PLENTY), source)
    assert the_entry(folder)


def test_an_entry_that_is_replaced_while_mapped_stays_as_it_was(path: Path, folder: Path) -> None:
    source = open_weights(path).cached(PLENTY)
    the_entry(folder).unlink()
    open_weights(path).cached(PLENTY)
    assert the_entry(folder)
    check_equal(source, open_weights(path))
