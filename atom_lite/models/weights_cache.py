"""Expanded weights on disk, from one start to the next: a safetensors file per checkpoint and type.

Expanding the rarer of GGUF's block formats costs more than reading what comes out of them, so such
a file's matrices are kept in the user's cache folder and mapped at the next start. An entry is
named by what it was made of: the SHA-256 of the checkpoint's bytes, the type, the model's order of
rows, and this module's version. A checkpoint that changed in any byte, whatever its size and date,
is another entry.

    missing          written beside under another name, then renamed: no half an entry is seen
    two at once      one writes (a file lock says who), the other expands for itself
    cut or garbled   noticed when opened: removed and written anew
    damaged inside   noticed by the tensor's CRC-32: read from the checkpoint instead, entry removed
    cannot be used   (read-only folder, full disk): a warning, and the checkpoint is read
    too much         entries that were not used for longest go first

Runs wherever a stage loads its layers. Entries are only ever replaced by renaming, never written
into: a server that is reading one reads it to its end. Vectors (norms, biases) are not worth a
place here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import math
import mmap
import os
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from atom_lite.models.weights import WeightSource

    Shapes = dict[str, tuple[int, ...]]

VERSION = 1
SUFFIX = ".safetensors"
_TYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_LOCK = "lock"
_ALIGNMENT = 64  # bytes at which the tensors begin
_NO_CHECKSUM = "0" * 8

logger = logging.getLogger(__name__)


class DamagedEntryError(ValueError):
    """An entry is not what its name says."""


def cache_folder() -> Path:
    """Where entries are kept: below XDG_CACHE_HOME, else the user's ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "atom_lite" / "weights"


def entry_key(content: mmap.mmap, *parts: object) -> str:
    """Name an entry by the bytes that it is made of, and by what else it depends on."""
    digest = hashlib.sha256(content)
    digest.update("\n".join(map(str, (VERSION, *parts))).encode())
    return digest.hexdigest()[:40]


def cached(
    origin: WeightSource, key: str, dtype: torch.dtype, *, folder: Path, limit_bytes: int
) -> WeightSource:
    """Read the origin's matrices through the cache; writes the entry where there is none.

    Args:
        origin: the checkpoint.
        key: of `entry_key`.
        dtype: of what `origin` gives.
        folder: where entries are.
        limit_bytes: of all entries together; an entry that exceeds it alone is not kept.
    """
    shapes = {name: shape for name, shape in origin.shapes().items() if len(shape) > 1}
    path = folder / f"{key}{SUFFIX}"
    try:
        entry = _open(path, shapes, dtype)
        if entry is None:
            _write_missing(path, origin, shapes, dtype, limit_bytes)
            entry = _open(path, shapes, dtype)
    except OSError as error:
        logger.warning("the weights cache cannot be used, going on without it: %s", error)
        return origin
    return origin if entry is None else CachedWeights(origin, entry)


class CachedWeights:
    """A `WeightSource`: matrices from an entry of the cache, everything else from its origin."""

    def __init__(self, origin: WeightSource, entry: Entry) -> None:
        self._origin = origin
        self._entry: Entry | None = entry

    def shapes(self) -> Shapes:
        """See WeightSource."""
        return self._origin.shapes()

    def read(self, name: str) -> Tensor:
        """See WeightSource."""
        if self._entry is None or name not in self._entry:
            return self._origin.read(name)
        try:
            return self._entry.read(name)
        except DamagedEntryError as error:
            logger.warning("%s; it is removed, and the checkpoint is read", error)
            self._entry.path.unlink(missing_ok=True)
            self._entry = None
            return self._origin.read(name)


class Entry:
    """One file of the cache, mapped.

    Args:
        path: the file.
        shapes: of the tensors that it must hold.
        dtype: of all of them.

    Raises:
        DamagedEntryError: it holds something else.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, shapes: Shapes, dtype: torch.dtype) -> None:
        self.path = path
        self._dtype = dtype
        self._shapes = shapes
        try:
            with path.open("rb") as file:
                # private and writable costs nothing until written, and torch views it as it is
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            start = 8 + int.from_bytes(self._data[:8], "little")
            header: dict[str, Any] = json.loads(self._data[8:start])
            self._checksums: dict[str, str] = header.pop("__metadata__")
            self._offsets = {
                name: start + fields["data_offsets"][0] for name, fields in header.items()
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DamagedEntryError(
                f"{path} is no entry of the weights cache: {error!r}"
            ) from error
        if json.dumps(header) != json.dumps(_header(shapes, dtype)):
            raise DamagedEntryError(f"{path} holds other tensors than it should")
        if len(self._data) != start + sum(_num_bytes(shape, dtype) for shape in shapes.values()):
            raise DamagedEntryError(f"{path} has been cut short")

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def read(self, name: str) -> Tensor:
        """Copy one tensor out, and let its pages go: the map adds nothing to the process's peak.

        Raises:
            DamagedEntryError: its bytes are not those that were written.
        """
        shape, offset = self._shapes[name], self._offsets[name]
        view = memoryview(self._data)[offset : offset + _num_bytes(shape, self._dtype)]
        if _checksum(view) != self._checksums.get(name):
            raise DamagedEntryError(f"tensor {name!r} in {self.path} is damaged")
        values = torch.frombuffer(
            self._data, dtype=self._dtype, offset=offset, count=math.prod(shape)
        ).clone()
        first_page = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._data.madvise(mmap.MADV_DONTNEED, first_page, offset + view.nbytes - first_page)
        return values.view(shape)


def _open(path: Path, shapes: Shapes, dtype: torch.dtype) -> Entry | None:
    """The entry, marked as used now; None where there is none, or none that is whole."""
    try:
        entry = Entry(path, shapes, dtype)
    except FileNotFoundError:
        return None
    except DamagedEntryError as error:
        logger.warning("%s; it is made anew", error)
        path.unlink(missing_ok=True)
        return None
    try:
        os.utime(path)
    except OSError:  # of a cache that others filled for us: its age is theirs to keep
        logger.debug("%s cannot be marked as used", path)
    return entry


def _write_missing(
    path: Path, origin: WeightSource, shapes: Shapes, dtype: torch.dtype, limit_bytes: int
) -> None:
    """Write an entry, unless another process is writing, or has just written it."""
    num_bytes = sum(_num_bytes(shape, dtype) for shape in shapes.values())
    if num_bytes > limit_bytes:
        logger.info(
            "expanded weights are not kept: they take %d bytes, --weights-cache-bytes is %d",
            num_bytes,
            limit_bytes,
        )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with _sole_writer(path.parent) as is_sole:
        if not is_sole or path.exists():
            return
        _make_room(path.parent, limit_bytes - num_bytes)
        unfinished = path.with_suffix(".unfinished")
        try:
            _write(unfinished, origin, shapes, dtype)
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
    logger.info("expanded weights are kept for the next start: %s, %d bytes", path, num_bytes)


@contextmanager
def _sole_writer(folder: Path) -> Iterator[bool]:
    """Whether this process alone may write to the folder; the lock goes with the process."""
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _make_room(folder: Path, most_bytes: int) -> None:
    """Remove what was cut off while being written, and the entries unused for longest."""
    for unfinished in folder.glob("*.unfinished"):
        unfinished.unlink(missing_ok=True)
    entries = [(path, path.stat()) for path in folder.glob(f"*{SUFFIX}")]
    total = sum(status.st_size for _, status in entries)
    for path, status in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
        if total <= most_bytes:
            return
        path.unlink(missing_ok=True)
        total -= status.st_size


def _write(path: Path, origin: WeightSource, shapes: Shapes, dtype: torch.dtype) -> None:
    """Write tensor after tensor, so that no second copy of the model is in memory.

    The checksums stand in the header, before the data: room is kept for them.
    """
    checksums = dict.fromkeys(shapes, _NO_CHECKSUM)
    with path.open("wb") as file:
        file.write(_encoded_header(shapes, dtype, checksums))
        for name in shapes:
            values = origin.read(name).contiguous().view(torch.uint8).flatten().numpy().data
            checksums[name] = _checksum(values)
            file.write(values)
        file.seek(0)
        file.write(_encoded_header(shapes, dtype, checksums))


def _encoded_header(shapes: Shapes, dtype: torch.dtype, checksums: dict[str, str]) -> bytes:
    text = json.dumps({"__metadata__": checksums, **_header(shapes, dtype)}).encode()
    length = -(-(8 + len(text)) // _ALIGNMENT) * _ALIGNMENT - 8
    return length.to_bytes(8, "little") + text.ljust(length)


def _header(shapes: Shapes, dtype: torch.dtype) -> dict[str, Any]:
    """The tensor table of a safetensors file that holds these, one after the other."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + _num_bytes(shape, dtype)
        header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    return header


def _num_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _checksum(data: memoryview) -> str:
    return f"{zlib.crc32(data):08x}"
