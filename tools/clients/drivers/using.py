"""The server's address for drivers in Python, and names for the features they use."""

import os
import urllib.request

URL = os.environ["RECORD_URL"]
QUESTION = "Tell me a story"
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city's name"}},
            "required": ["city"],
        },
    },
}


def use(name: str) -> None:
    """Names the feature that the next requests are for."""
    urllib.request.urlopen(f"{URL}/record/{name.replace(' ', '_')}").read()
