"""The paged key-value cache: blocks of 16 token slots, and who holds them."""

from unspool.cache.pool import BLOCK_SIZE, BlockPool, blocks_for_memory, blocks_for_tokens
from unspool.cache.table import Appended, BlockTable

__all__ = ["BLOCK_SIZE", "Appended", "BlockPool", "BlockTable", "blocks_for_memory", "blocks_for_tokens"]
