"""GPT-2's byte-level alphabet: each byte is written as one printable character.

Printable bytes stand for themselves and the 68 others for U+0100 and on, so that a vocabulary of bytes can be
kept as readable text. Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER = sorted(set(range(256)) - set(_PRINTABLE))

BYTE_OF_CHARACTER: dict[str, int] = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + n): byte for n, byte in enumerate(_OTHER)
}
CHARACTER_OF_BYTE: dict[int, str] = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}


def piece_bytes(piece: str) -> bytes:
    """The bytes that a vocabulary's ``piece`` stands for; characters outside the alphabet are themselves."""
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        parts = (
            bytes([BYTE_OF_CHARACTER[c]]) if c in BYTE_OF_CHARACTER else c.encode("utf-8") for c in piece
        )
        return b"".join(parts)
