"""Reads a model in a GGUF file: header (`file`), numbers (`config`), tokenizer (`tokenizer`), or all (`model`)."""
