import os
import tempfile

os.environ.update({"MEM0_TELEMETRY": "False", "MEM0_DIR": tempfile.mkdtemp()})

from mem0 import Memory
from using import QUESTION, URL, use


def main() -> None:
    served = {"model": "demo", "openai_base_url": f"{URL}/v1", "api_key": "none"}
    store = {"path": tempfile.mkdtemp(), "embedding_model_dims": 8, "collection_name": "told"}
    memory = Memory.from_config(
        {
            "llm": {"provider": "openai", "config": {**served, "max_tokens": 48}},
            "embedder": {"provider": "openai", "config": {**served, "embedding_dims": 8}},
            "vector_store": {"provider": "qdrant", "config": store},
        }
    )
    use("remember")
    memory.add([{"role": "user", "content": QUESTION}], user_id="somebody")
    use("search")
    memory.search(QUESTION, filters={"user_id": "somebody"})


main()
