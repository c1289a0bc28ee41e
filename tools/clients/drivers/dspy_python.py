import contextlib

import dspy
from using import QUESTION, URL, use


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    served = {"api_base": f"{URL}/v1", "api_key": "none", "cache": False, "num_retries": 0, "max_tokens": 64}
    dspy.configure(lm=dspy.LM("openai/demo", **served))
    use("predict")
    ask(dspy.Predict("question -> answer"))
    use("predict by json")
    with dspy.context(adapter=dspy.JSONAdapter()):
        ask(dspy.Predict("question -> answer"))
        ask(dspy.ChainOfThought("question -> answer"))
    use("an agent with tools")
    ask(dspy.ReAct("question -> answer", tools=[get_weather], max_iters=1))
    use("completions")
    dspy.LM("text-completion-openai/demo", model_type="text", **served)(QUESTION)
    use("responses")
    dspy.LM("openai/demo", model_type="responses", **served)(QUESTION)
    use("embeddings")
    dspy.Embedder("openai/demo", api_base=f"{URL}/v1", api_key="none", caching=False)([QUESTION])


def ask(program) -> None:  # type: ignore[no-untyped-def]
    """The answer, which is the same for all, need not have the program's form."""
    with contextlib.suppress(dspy.utils.exceptions.AdapterParseError, ValueError):
        program(question=QUESTION)


main()
