"""Other engines, each measured in its own interpreter; nothing here imports unspool."""
