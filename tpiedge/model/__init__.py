"""A model: config, tensors, tokenizer, chat template. Model files are untrusted input. No torch.

`source` finds a model by the name that a user types, pulled ones too, `presets` knows short names and shapes, `folder`
reads a folder's files. `config` (with `rope` and `quantisation`) holds the numbers and the pooling, `checkpoint` the
tensors, `spec` what a pack is written from. Text: `tokenizer` (with `named_tokens`), `speech` (thoughts, and calls of
tools, by a `call_reader` of `held_text`), and `chat_prompt`, which hands messages over to a `template`. Tokenizer and
template work in a `text_process`, which is a `text_child`. `hub` pulls models. `gguf/` is a package of its own.
"""
