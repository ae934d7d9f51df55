"""The paged key-value cache: blocks of 16 token slots, who holds them, and which are found again."""

from unspool.cache.pool import BLOCK_SIZE, BlockPool, blocks_for_memory, blocks_for_tokens
from unspool.cache.prefix import HashChain, PrefixCache
from unspool.cache.table import Appended, BlockTable
from unspool.cache.usage import CacheUse, measure

__all__ = [
    "BLOCK_SIZE",
    "Appended",
    "BlockPool",
    "BlockTable",
    "CacheUse",
    "HashChain",
    "PrefixCache",
    "blocks_for_memory",
    "blocks_for_tokens",
    "measure",
]
