"""What is fetched of a repository beside its weights."""

from tpiedge.model.hub.listing import Listing, texts
from tpiedge.model.hub.transfer import RemoteFile


def test_files_that_say_how_weights_were_quantised_are_fetched() -> None:
    """Without them the weights of old GPTQ and AWQ repositories cannot be read."""
    names = ["config.json", "quantize_config.json", "quant_config.json", "model.safetensors", "README.md"]
    listing = Listing("a/b", "main", {name: RemoteFile(name, 10, "0" * 40) for name in names})
    assert {file.name for file in texts(listing)} == {
        "config.json",
        "quantize_config.json",
        "quant_config.json",
    }
