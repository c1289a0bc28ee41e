"""Reads a model in a GGUF file: `file` the header, `config` the numbers, `tokenizer` the tokenizer, `model` all."""
