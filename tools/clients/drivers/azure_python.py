from azure.ai.inference import ChatCompletionsClient, EmbeddingsClient
from azure.ai.inference.models import (
    ChatCompletionsToolDefinition,
    FunctionDefinition,
    JsonSchemaFormat,
    SystemMessage,
    UserMessage,
)
from azure.core.credentials import AzureKeyCredential
from using import QUESTION, SCHEMA, TOOL, URL, use

CHAT = [SystemMessage("You tell stories."), UserMessage(QUESTION)]


def main() -> None:
    key = AzureKeyCredential("none")
    client = ChatCompletionsClient(f"{URL}/openai/deployments/demo", key)
    use("chat")
    client.complete(messages=CHAT, max_tokens=8, temperature=0.7)
    use("chat stream")
    for _ in client.complete(messages=CHAT, max_tokens=8, stream=True):
        pass
    use("tools")
    tool = ChatCompletionsToolDefinition(function=FunctionDefinition(**TOOL["function"]))
    client.complete(messages=CHAT, max_tokens=8, tools=[tool])
    use("structured output")
    form = JsonSchemaFormat(name="Answer", schema=SCHEMA, strict=True)
    client.complete(messages=CHAT, max_tokens=48, response_format=form)
    use("embeddings")
    EmbeddingsClient(f"{URL}/openai/deployments/demo", key).embed(input=[QUESTION, "Once"])


main()
