"""From a request to its tokens, one step at a time."""
