"""unspool: an inference engine for decoder-only language models whose subject is decoding."""
