"""The GGUF container: metadata, the tensor table, and the raw bytes of a tensor.

`gguf.GGUFReader` makes a numpy view per string: 5 s for the 98,000 strings of a small vocabulary.
This reader walks the header once (0.1 s for the same file) and maps the tensors. Standard library
only, so the frontend may use it too.

Source: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GgufValue: TypeAlias = "int | float | bool | str | list[GgufValue]"

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
# metadata value type -> struct code of one element
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


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How numbers are stored: `block_bytes` for every `block_size` consecutive ones of a row."""

    name: str
    block_size: int
    block_bytes: int


# tensor type -> format, for the formats that `gguf_blocks` can expand
BLOCK_FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2),
    2: BlockFormat("Q4_0", 32, 18),
    3: BlockFormat("Q4_1", 32, 20),
    6: BlockFormat("Q5_0", 32, 22),
    7: BlockFormat("Q5_1", 32, 24),
    8: BlockFormat("Q8_0", 32, 34),
    10: BlockFormat("Q2_K", 256, 84),
    11: BlockFormat("Q3_K", 256, 110),
    12: BlockFormat("Q4_K", 256, 144),
    13: BlockFormat("Q5_K", 256, 176),
    14: BlockFormat("Q6_K", 256, 210),
    16: BlockFormat("IQ2_XXS", 256, 66),
    17: BlockFormat("IQ2_XS", 256, 74),
    18: BlockFormat("IQ3_XXS", 256, 98),
    19: BlockFormat("IQ1_S", 256, 50),
    20: BlockFormat("IQ4_NL", 32, 18),
    21: BlockFormat("IQ3_S", 256, 110),
    22: BlockFormat("IQ2_S", 256, 82),
    23: BlockFormat("IQ4_XS", 256, 136),
    29: BlockFormat("IQ1_M", 256, 56),
    30: BlockFormat("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]  # outermost first, as torch counts
    type_id: int
    offset: int  # of its bytes in the file


class GgufFile:
    """A GGUF file, mapped; the mapping lives as long as this object or any view of it.

    Args:
        path: the file.

    Raises:
        ConfigError: it cannot be read, is cut short, or has a version that is not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # a private writable map costs nothing until written, and torch can view it as is
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            header = _HeaderCursor(self.data)
            num_tensors, num_pairs = header.start()
            self.metadata: dict[str, Any] = header.metadata(num_pairs)
            self.tensors = {tensor.name: tensor for tensor in header.tensors(num_tensors)}
        except OSError as error:
            raise ConfigError(f"cannot read the GGUF file {path}: {error}") from error
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(f"{path} is not a readable GGUF file: {error}") from error
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ConfigError(f"{path}: general.alignment is {alignment!r}, must be at least 1")
        self._data_start = -(-header.position // alignment) * alignment

    def format_of(self, tensor: GgufTensor) -> BlockFormat:
        """Look up how a tensor is stored.

        Raises:
            ConfigError: in a quantization that is not read; names it.
        """
        found = BLOCK_FORMATS.get(tensor.type_id)
        if found is None:
            readable = ", ".join(known.name for known in BLOCK_FORMATS.values())
            raise ConfigError(
                f"{self.path}: tensor {tensor.name!r} is quantized as "
                f"{_type_name(tensor.type_id)}; supported are {readable}"
            )
        if not tensor.shape or tensor.shape[-1] % found.block_size:
            raise ConfigError(
                f"{self.path}: tensor {tensor.name!r} of shape {list(tensor.shape)} does not split "
                f"into {found.name} blocks of {found.block_size}"
            )
        return found

    def span(self, tensor: GgufTensor) -> tuple[int, int]:
        """Where a tensor's bytes lie in the file: offset and length.

        Raises:
            ConfigError: they reach beyond the end of the file.
        """
        stored = self.format_of(tensor)
        length = math.prod(tensor.shape) // stored.block_size * stored.block_bytes
        offset = self._data_start + tensor.offset
        if offset + length > len(self.data):
            raise ConfigError(f"{self.path}: the file ends before tensor {tensor.name!r} does")
        return offset, length

    def read_floats(self, name: str) -> tuple[float, ...]:
        """Read a small F32 tensor as Python numbers."""
        tensor = self.tensors[name]
        if self.format_of(tensor).name != "F32":
            raise ConfigError(f"{self.path}: tensor {name!r} must be F32")
        offset, length = self.span(tensor)
        return struct.unpack_from(f"<{length // 4}f", self.data, offset)


class _HeaderCursor:
    """Walks the header from the start of the file; every read moves `position` on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def start(self) -> tuple[int, int]:
        """Check magic and version; give the numbers of tensors and of metadata pairs."""
        if self._data[:4] != _MAGIC:
            raise ValueError("it does not start with the letters GGUF")
        self.position = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"it has version {version}; versions 2 and 3 are read")
        return self._scalar("Q"), self._scalar("Q")

    def metadata(self, num_pairs: int) -> dict[str, Any]:
        """Read the key-value section."""
        pairs: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._strings(1)[0]
            pairs[key] = self._value(self._scalar("I"))
        return pairs

    def tensors(self, num_tensors: int) -> list[GgufTensor]:
        """Read the tensor table."""
        table = []
        for _ in range(num_tensors):
            name = self._strings(1)[0]
            shape = tuple(self._scalar("Q") for _ in range(self._scalar("I")))
            table.append(GgufTensor(name, shape[::-1], self._scalar("I"), self._scalar("Q")))
        return table

    def _value(self, value_type: int) -> Any:
        if value_type == _STRING:
            return self._strings(1)[0]
        if value_type in _SCALARS:
            return self._scalar(_SCALARS[value_type])
        if value_type != _ARRAY:
            raise ValueError(f"unknown value type {value_type} at byte {self.position}")
        element_type, length = self._scalar("I"), self._scalar("Q")
        if length > len(self._data):
            raise ValueError(f"an array of {length} elements exceeds the file")
        if element_type == _STRING:
            return self._strings(length)
        if element_type in _SCALARS:
            layout = struct.Struct(f"<{length}{_SCALARS[element_type]}")
            self.position += layout.size
            return list(layout.unpack_from(self._data, self.position - layout.size))
        return [self._value(element_type) for _ in range(length)]

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct(f"<{code}")
        self.position += layout.size
        return layout.unpack_from(self._data, self.position - layout.size)[0]

    def _strings(self, count: int) -> list[str]:
        # the one hot loop, over the vocabulary and its merges
        data, position = self._data, self.position
        length_at = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            position = start + length_at(data, position)[0]
            if position > len(data):
                raise ValueError(f"a string at byte {start} exceeds the file")
            strings.append(data[start:position].decode())
        self.position = position
        return strings


def _type_name(type_id: int) -> str:
    """Name a tensor type in an error message, as the format's own package calls it."""
    from gguf import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(type_id).name)
    except ValueError:
        return f"type {type_id}"
