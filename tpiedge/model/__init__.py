"""Reads a model's config, tensors, tokenizer and chat template, without torch. Model files are untrusted; errors in
them are UserErrors."""
