"""What a model is: config, tensors, tokenizer, chat template. Model files are untrusted input. No torch."""
