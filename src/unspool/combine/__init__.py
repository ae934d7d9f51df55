"""What the rows that a request draws from are made of, beside the model's own."""

from unspool.combine.base import Combination, Place

__all__ = ["Combination", "Place"]
