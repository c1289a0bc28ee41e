import aisuite
from using import QUESTION, TOOL, URL, use

CHAT = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": QUESTION}]


def main() -> None:
    client = aisuite.Client(
        {"openai": {"api_key": "none", "base_url": f"{URL}/v1"}, "ollama": {"api_url": URL}}
    )
    use("chat")
    client.chat.completions.create(model="openai:demo", messages=CHAT, max_tokens=8, temperature=0.7)
    use("tools")
    client.chat.completions.create(model="openai:demo", messages=CHAT, max_tokens=8, tools=[TOOL])
    use("ollama chat")
    client.chat.completions.create(model="ollama:demo", messages=CHAT)


main()
