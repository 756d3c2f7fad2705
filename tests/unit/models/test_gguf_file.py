from __future__ import annotations

import gguf
import pytest

from atom_lite.errors import ConfigError
from atom_lite.models.gguf_file import GgufFile


@pytest.fixture
def sample(tmp_path):
    """A file with a value of each type, written by the reference implementation."""
    path = tmp_path / "sample.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "Ġ語 \x00 😀")
    writer.add_array("words", ["", "a", "日本"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.25, -1.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_value_type_is_read(sample):
    metadata = GgufFile(sample).metadata
    metadata.pop("general.architecture")
    assert metadata == {
        "u8": 200,
        "i8": -3,
        "u16": 60_000,
        "i16": -30_000,
        "u32": 4_000_000_000,
        "i32": -5,
        "u64": 2**63,
        "i64": -(2**62),
        "f32": 0.5,
        "f64": 0.1,
        "flag": True,
        "text": "Ġ語 \x00 😀",
        "words": ["", "a", "日本"],
        "numbers": [1, -2, 3],
        "floats": [0.25, -1.5],
    }


def test_a_file_cut_anywhere_is_refused_with_its_name(sample, tmp_path):
    content = sample.read_bytes()
    cut_file = tmp_path / "cut.gguf"
    for length in range(len(content) - 1):
        cut_file.write_bytes(content[:length])
        with pytest.raises(ConfigError, match=r"cut\.gguf"):
            GgufFile(cut_file)


def test_another_version_is_refused(sample):
    content = bytearray(sample.read_bytes())
    content[4:8] = (1).to_bytes(4, "little")
    sample.write_bytes(content)
    with pytest.raises(ConfigError, match="version 1"):
        GgufFile(sample)


def test_an_unknown_value_type_is_refused(tmp_path):
    path = tmp_path / "odd.gguf"
    key = (1).to_bytes(8, "little") + b"k" + (77).to_bytes(4, "little")
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    path.write_bytes(header + key)
    with pytest.raises(ConfigError, match="unknown value type 77"):
        GgufFile(path)


def test_an_absurd_array_length_is_refused_before_memory_is_taken(tmp_path):
    path = tmp_path / "huge.gguf"
    key = (1).to_bytes(8, "little") + b"k" + (9).to_bytes(4, "little")
    array = (4).to_bytes(4, "little") + (2**60).to_bytes(8, "little")
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    path.write_bytes(header + key + array)
    with pytest.raises(ConfigError, match="exceeds the file"):
        GgufFile(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        GgufFile(tmp_path / "none.gguf")
