"""From a row of logits to a drawn token: rules, chains, noise. Pure: arrays in, arrays out."""
