"""Reads a model's config, tensors, tokenizer and chat template, without torch. Model files are untrusted; errors in
them are UserErrors.

`source` finds a model. `presets` knows aliases and shapes. `folder` reads files. `config`, `rope` and `quantisation`
read numbers. `checkpoint` finds tensors. `spec` describes a pack. `tokenizer` and `named_tokens` encode text. `output`,
`call_reader` and `held_text` separate reasoning and tool calls. `chat_prompt` fits messages to a template, and
`template` renders it. `text_process` runs `text_child` in a process. `hub` pulls models. `gguf/` reads GGUF files.
"""
