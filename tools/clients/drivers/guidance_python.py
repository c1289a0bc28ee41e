import guidance
from guidance import assistant, gen, select, system, user
from guidance.models.experimental import VLLMModel
from using import QUESTION, SCHEMA, URL, use


def main() -> None:
    asked = VLLMModel("demo", base_url=f"{URL}/v1", api_key="none", echo=False)
    with system():
        asked += "You tell stories."
    with user():
        asked += QUESTION
    use("grammar")
    with assistant():
        asked + gen("answer", regex="[a-z]{1,8}", max_tokens=8)
    use("choice")
    with assistant():
        asked + select(["once", "twice"], name="answer")
    use("text")
    with assistant():
        asked + gen("answer", max_tokens=8)
    use("schema")
    with assistant():
        asked + guidance.json("answer", schema=SCHEMA)


main()
