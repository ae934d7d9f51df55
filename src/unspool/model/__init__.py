"""Files to a runnable model: spec, tensors, tokenizer, chat template, fetching by name."""
