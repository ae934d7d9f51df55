"""The paged key-value cache: blocks of 16 token slots, and who holds them."""
