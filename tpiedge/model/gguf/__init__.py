"""Reads a model in a GGUF file. `names` picks files, `file` reads the header. `config` translates the numbers,
`tokenizer` the tokenizer. `model` combines all."""
