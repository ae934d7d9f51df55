"""A model's own way of writing a conversation as text."""

from __future__ import annotations


class ChatTemplate:
    """A Jinja template from a model file."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        self.source = source
        self.bos = bos
        self.eos = eos
