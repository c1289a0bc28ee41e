import json

from tests.process.gguf_of_checkpoint import write_gguf_of
from tpiedge.local.prepare import prepare
from tpiedge.model.source import DEMO, resolve_model
from tpiedge.model.template import ChatTemplate


def write_text_gguf_of(folder, path, kind, tensors_per_part=0):
    """A checkpoint of the demo's kind with its text; rows beyond the tokenizer are called as converters call them."""
    source = json.loads((folder / "tokenizer.json").read_bytes())
    special = {token["content"]: token["id"] for token in source["added_tokens"]}
    by_id = {number: token for token, number in (source["model"]["vocab"] | special).items()}
    rows = json.loads((folder / "config.json").read_bytes())["vocab_size"]
    tokens = [by_id.get(row, f"[PAD{row}]") for row in range(rows)]
    return write_gguf_of(
        folder,
        path,
        kind,
        tensors_per_part,
        ggml__model="gpt2",
        ggml__pre="gpt-2",
        ggml__tokens=tokens,
        ggml__token_type=[
            5 if row not in by_id else 3 if by_id[row] in special else 1 for row in range(rows)
        ],
        ggml__merges=[" ".join(merge) for merge in source["model"]["merges"]],
        ggml__bos_token_id=0,
        ggml__eos_token_id=1,
        ggml__eot_token_id=2,
        ggml__add_bos_token=True,
        chat_template=(folder / "chat_template.jinja").read_text(),
    )


def test_imported_gguf_gives_the_checkpoint_tokens(tpiedge, generate, references, tmp_path):
    found = references("llama-mqa-tied")
    path = write_gguf_of(found.folder, tmp_path / "model.gguf", "F16")
    ended = tpiedge("import-gguf", path, "--out", tmp_path / "pack", "--verify", "--json")
    assert ended.status == 0, ended.err
    (record,) = map(json.loads, ended.out.splitlines())
    assert record["exact"]
    assert record["verified"]
    assert record["precision"]["layers"] == "f32"
    prompt = ("--prompt-ids", ",".join(map(str, found.prompt_ids)), "--ignore-eos")
    ran = generate("--model", tmp_path / "pack", *prompt, "--max-tokens", len(found.greedy_ids), "--nodes", 2)
    assert ran["token_ids"] == list(found.greedy_ids)


def test_gguf_file_runs_and_is_packed_once(here, one_fork_server, tmp_path):
    """The first time it is imported into the cache; afterwards its pack is there, by file and by name."""
    path = write_text_gguf_of(resolve_model(DEMO), tmp_path / "Small-boat.Q5_0.gguf", "Q5_0")
    arguments = ("--raw", "--prompt", "The small boat", "--max-tokens", 8)
    flags = (*arguments, "--threads", 1, "--cache", tmp_path / "c")
    first = here("run", "--model", path, "--precision", "q8", *flags)
    assert first.status == 0, first.err
    assert "packing Small-boat.Q5_0.gguf as q8" in first.err
    assert "of Q5_0 are rounded to q8" in first.err
    again = here("run", "--model", path, "--precision", "q8", *flags)
    assert "packing" not in again.err
    assert "rounded" not in again.err
    named = here("run", "--model", "small-boat-Q8", *flags)  # whatever the case
    assert first.out == again.out == named.out
    (pack,) = json.loads(here("ls", "--json", "--cache", tmp_path / "c").out)["packs"]
    assert (pack["name"], pack["source"], pack["precision"]) == ("Small-boat-q8", str(path), "q8")
    assert "of Q5_0 are rounded to q8 (" in pack["rounded"]
    assert f"Small-boat-q8: {pack['rounded']}" in here("ls", "--cache", tmp_path / "c").out.splitlines()


def test_own_template_is_kept_in_the_pack(here, tmp_path):
    path = write_text_gguf_of(resolve_model(DEMO), tmp_path / "model.gguf", "Q8_0")
    command = ("import-gguf", path, "--out", tmp_path / "pack", "--chat-template", tmp_path / "own.jinja")
    for template, words in (
        (None, "own.jinja is not a file"),
        (" ", "own.jinja is empty"),
        ("{% if %}", "line 1: TemplateSyntaxError"),
    ):
        if template:
            (tmp_path / "own.jinja").write_text(template)
        refused = here(*command)
        assert (refused.status, (tmp_path / "pack").exists()) == (2, False)
        assert words in refused.err
    assert here(*command[:4]).status == 0
    (tmp_path / "own.jinja").write_text("{{ bos_token + messages[0].content }}?")
    assert "already there" in here(*command).out
    model = prepare(str(tmp_path / "pack"), None, None, None)
    assert model.tokenizer.decode(model.message_ids([{"role": "user", "content": "Hello"}])) == "Hello?"
    template = ChatTemplate.open(tmp_path / "pack" / "text", {})
    assert template.source(tools=True) == template.source(tools=False)
