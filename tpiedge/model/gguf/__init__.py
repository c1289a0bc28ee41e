"""A model in a GGUF file: header (`file`), numbers (`config`), tensors (`names`), `tokenizer` (with its
`named_ids`); `model` is all of it."""
