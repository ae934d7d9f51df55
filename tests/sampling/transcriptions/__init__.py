"""What other engines make of a row, told again in NumPy from the source that each file cites.

Every ``law`` takes a [vocabulary] float32 row, the settings by our names, and the tokens of prompt and
output, and gives the [vocabulary] probabilities that the engine draws from, 0 for a token that it does not
keep. Sums that the engines take in float32 are taken in float64: which side of an exact boundary rounding
falls on is no rule of theirs. Neither is what an unstable sort does with ties; here such a sort is stable,
by ascending token id."""
