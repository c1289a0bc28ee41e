"""A model in a GGUF file: header (`file`), numbers (`config`), tensors (`names`), `tokenizer`; `model` is all of it."""
