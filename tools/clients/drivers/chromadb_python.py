import chromadb
from chromadb.utils.embedding_functions import OllamaEmbeddingFunction, OpenAIEmbeddingFunction
from using import QUESTION, URL, use


def main() -> None:
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    functions = {
        "embeddings": OpenAIEmbeddingFunction(api_key="none", api_base=f"{URL}/v1", model_name="demo"),
        "ollama embed": OllamaEmbeddingFunction(url=URL, model_name="demo"),
    }
    for name, function in functions.items():
        use(name)
        told = client.create_collection(name.replace(" ", "-"), embedding_function=function)
        told.add(ids=["1", "2"], documents=[QUESTION, "Once"])
        told.query(query_texts=[QUESTION], n_results=1)


main()
