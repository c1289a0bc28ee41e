"""Reads a model in a GGUF file. `names` picks files. `file` reads the header. `config` translates the header's keys
to config.json. `tokenizer` translates the vocabulary to tokenizer.json. `model` combines all."""
