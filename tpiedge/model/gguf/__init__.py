"""A model in a GGUF file: header (`file`), numbers (`config`), `tokenizer`; `model` is all of it."""
