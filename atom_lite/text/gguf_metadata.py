"""Read the metadata of a GGUF file, and nothing of its tensors.

The frontend needs a GGUF file's vocabulary, merges and chat template. `gguf.GGUFReader` makes a
numpy view per string, 5 s for the 100,000 strings of a 49k vocabulary, and parses the tensor table
as well; this reader walks the key-value section once, 0.1 s for the same file. It runs in the
frontend process and imports nothing but the standard library.

Source: the GGUF specification, versions 2 and 3 (little-endian).
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, TypeAlias

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GgufValue: TypeAlias = "int | float | bool | str | list[GgufValue]"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# value type of the file -> struct format of one element
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


def read_gguf_metadata(path: Path) -> dict[str, GgufValue]:
    """All metadata of a GGUF file by key.

    Raises:
        ConfigError: when the file is no GGUF file, is cut short, or has a version that is not read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _MetadataCursor(data).read_all()
    except OSError as error:
        raise ConfigError(f"cannot read the GGUF file {path}: {error}") from error
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path} is not a readable GGUF file: {error}") from error


class _MetadataCursor:
    """Walks the bytes of a GGUF file from its start; every read moves the position on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0

    def read_all(self) -> dict[str, GgufValue]:
        if self._data[:4] != _MAGIC:
            raise ValueError("it does not start with the letters GGUF")
        self._position = 4
        version = int(self._scalar("I"))
        if version not in _VERSIONS:
            raise ValueError(
                f"version {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} are read"
            )
        self._scalar("Q")  # number of tensors
        num_pairs = int(self._scalar("Q"))
        metadata: dict[str, GgufValue] = {}
        for _ in range(num_pairs):
            key = self._strings(1)[0]
            assert isinstance(key, str)
            metadata[key] = self._value(int(self._scalar("I")))
        return metadata

    def _value(self, value_type: int) -> GgufValue:
        if value_type == _STRING:
            return self._strings(1)[0]
        if value_type == _ARRAY:
            return self._array()
        if value_type not in _SCALARS:
            raise ValueError(f"unknown value type {value_type} at byte {self._position}")
        return self._scalar(_SCALARS[value_type])

    def _array(self) -> GgufValue:
        element_type = int(self._scalar("I"))
        length = int(self._scalar("Q"))
        if length > len(self._data):
            raise ValueError(
                f"an array of {length} elements at byte {self._position} exceeds the file"
            )
        if element_type == _STRING:
            return self._strings(length)
        if element_type in _SCALARS:
            layout = struct.Struct(f"<{length}{_SCALARS[element_type]}")
            values = layout.unpack_from(self._data, self._position)
            self._position += layout.size
            return list(values)
        return [self._value(element_type) for _ in range(length)]

    def _scalar(self, code: str) -> int | float | bool:
        layout = struct.Struct(f"<{code}")
        value: int | float | bool = layout.unpack_from(self._data, self._position)[0]
        self._position += layout.size
        return value

    def _strings(self, count: int) -> list[GgufValue]:
        # The one hot loop: hundreds of thousands of short strings. Locals keep it at 0.5 us each.
        data, position = self._data, self._position
        length_at = struct.Struct("<Q").unpack_from
        strings: list[GgufValue] = []
        for _ in range(count):
            start = position + 8
            position = start + length_at(data, position)[0]
            if position > len(data):
                raise ValueError(f"a string at byte {start} exceeds the file")
            strings.append(data[start:position].decode("utf-8"))
        self._position = position
        return strings
