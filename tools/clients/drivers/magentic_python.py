from magentic import AssistantMessage, Chat, FunctionCall, OpenaiChatModel, StreamedStr, UserMessage, prompt
from pydantic import BaseModel
from using import QUESTION, URL, use


class Answer(BaseModel):
    answer: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"Sunny in {city}"


def main() -> None:
    model = OpenaiChatModel("demo", base_url=f"{URL}/v1", api_key="none", max_tokens=48)

    @prompt(QUESTION, model=model)
    def tell() -> str: ...

    @prompt(QUESTION, model=model)
    def tell_in_parts() -> StreamedStr: ...

    @prompt(QUESTION, model=model)
    def tell_formed() -> Answer: ...

    @prompt(QUESTION, model=model, functions=[get_weather])
    def look() -> FunctionCall[str]: ...

    use("chat")
    tell()
    use("chat stream")
    str(tell_in_parts())
    use("tools")
    look()
    use("chat in turns")
    Chat([UserMessage(QUESTION), AssistantMessage("Once."), UserMessage("Go on.")], model=model).submit()
    use("structured output")
    try:
        tell_formed()
    except Exception as error:  # it is asked for by a tool, which is not what is answered
        print(error)


main()
