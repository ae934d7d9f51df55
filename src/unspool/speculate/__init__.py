"""Guessing tokens ahead: drafts, who proposes them, and what they are worth. Pure: no engine, no file."""

from unspool.speculate.draft import DraftTree, Proposer
from unspool.speculate.expected import expected_tokens

__all__ = ["DraftTree", "Proposer", "expected_tokens"]
