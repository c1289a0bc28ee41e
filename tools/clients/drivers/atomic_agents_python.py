import instructor
import openai
from atomic_agents.agents.base_agent import BaseAgent, BaseAgentConfig, BaseAgentInputSchema
from using import QUESTION, URL, use


def main() -> None:
    plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON):
        use(f"an agent by {mode.value}")
        client = instructor.from_openai(plain, mode=mode)
        config = BaseAgentConfig(client=client, model="demo", model_api_parameters={"max_tokens": 48})
        try:
            BaseAgent(config).run(BaseAgentInputSchema(chat_message=QUESTION))
        except instructor.exceptions.InstructorRetryException as error:  # what is answered is of another form
            print(error)


main()
