import gguf
import numpy as np
import torch

from tools.peers.agreement import read_logits


def test_logits_of_llama_results_are_read(tmp_path) -> None:
    """Logits have a row per token, although the file calls them a matrix of V rows."""
    logits_TV = np.arange(6, dtype=np.float32).reshape(2, 3)
    writer = gguf.GGUFWriter(tmp_path / "logits", "none")
    writer.add_tensor("tokens", np.array([7, 4], np.int32))
    writer.add_tensor("logits", logits_TV.reshape(3, 2))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ids, found_TV = read_logits(tmp_path / "logits")
    assert ids == (7, 4)
    torch.testing.assert_close(found_TV, torch.from_numpy(logits_TV), rtol=0, atol=0)
