"""What the rows that a request draws from are made of, beside the model's own."""

from unspool.combine.base import Combination, Place
from unspool.combine.contrastive_decoding import ContrastiveDecoding
from unspool.combine.dola import DoLa
from unspool.combine.guidance import Guidance

__all__ = ["Combination", "ContrastiveDecoding", "DoLa", "Guidance", "Place"]
