"""The printable alphabet in which byte-level BPE vocabularies spell bytes.

GPT-2 wrote each byte as one visible character so that a vocabulary is plain text: printable Latin-1
characters stand for themselves, the other 68 bytes follow from U+0100 on (a space is U+0120).
Source: GPT-2's encoder. Runs in the frontend; data only.
"""

from __future__ import annotations


def _byte_of_letter() -> dict[str, int]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in set(printable)]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + index): byte for index, byte in enumerate(rest)})
    return letters


BYTE_OF_LETTER = _byte_of_letter()
_LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}


def spell(data: bytes) -> str:
    """Bytes as a byte-level vocabulary writes them."""
    return "".join(_LETTER_OF_BYTE[byte] for byte in data)


def unspell(token: str) -> bytes:
    """The bytes of a token; one that is not spelled in the alphabet is its own UTF-8 text."""
    try:
        return bytes([BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:
        return token.encode()
