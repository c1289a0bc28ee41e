import guidance
from guidance import assistant, gen, select, system, user
from guidance.models.experimental import VLLMModel
from using import QUESTION, SCHEMA, URL, use


def main() -> None:
    model = VLLMModel("demo", base_url=f"{URL}/v1", api_key="none", echo=False)
    with system():
        model += "You tell stories."
    with user():
        model += QUESTION
    use("grammar")
    with assistant():
        model + gen("answer", regex="[a-z]{1,8}", max_tokens=8)
    use("choice")
    with assistant():
        model + select(["once", "twice"], name="answer")
    use("text")
    with assistant():
        model + gen("answer", max_tokens=8)
    use("schema")
    with assistant():
        model + guidance.json("answer", schema=SCHEMA)


main()
