"""The clients whose requests are recorded, with installed version and driver. Left out are:

- marvin: 3.2.7 sends no request with pydantic-ai 1.9, 1.30, 1.107 or 2.62;
- txtai: it needs torch, and sends requests with LiteLLM, which is recorded;
- oterm, parllama: they need a terminal; oterm sends requests with ollama-python and pydantic-ai, which are recorded;
- Cline, Roo Code, Zed and other editors: not tried, since their extensions run in the editor;
- AnythingLLM, LibreChat, LobeChat, Jan: not tried, since they are servers and desktop programs;
- fabric, aichat, mods: not tried, since they are programs in Go and Rust;
- LangChain4j, Spring AI, Semantic Kernel for .NET: not tried, as libraries of Java and .NET.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Client:
    """A client's package, the version that is recorded, and the driver that uses it. `more`: what is installed with
    it; `bare`: whether that is all that is, as where what it says that it needs is gigabytes."""

    package: str
    version: str
    driver: str
    more: tuple[str, ...] = ()
    bare: bool = False

    @property
    def node(self) -> bool:
        return self.driver.endswith(".mjs")

    @property
    def wanted(self) -> str:
        """The package in its version, as pip or npm is asked for it."""
        return f"{self.package}@{self.version}" if self.node else f"{self.package}=={self.version}"


#: By the name of the file that holds what it sends.
CLIENTS = {
    "openai-python": Client("openai", "3.57.0", "openai_python.py"),
    "anthropic-python": Client("anthropic", "2.14.0", "anthropic_python.py"),
    "ollama-python": Client("ollama", "0.6.3", "ollama_python.py"),
    "langchain": Client("langchain-openai", "1.7.4", "langchain.py"),
    "langchain-ollama": Client("langchain-ollama", "1.1.0", "langchain_ollama_python.py"),
    "langchain-anthropic": Client("langchain-anthropic", "1.7.10", "langchain_anthropic_python.py"),
    "litellm": Client("litellm", "1.110.2", "litellm_python.py"),
    "llm": Client("llm", "0.36", "llm_cli.py"),
    "llm-ollama": Client("llm-ollama", "0.19.1", "llm_plugins.py"),
    "open-webui": Client(
        "open-webui",
        "0.12.4",
        "web_ui.py",
        (
            "aiocache",
            "aiofiles",
            "aiohttp",
            "beautifulsoup4",
            "cryptography",
            "fastapi",
            "markdown",
            "PyJWT",
            "python-engineio",
            "python-mimeparse",
            "python-multipart",
            "sqlalchemy[asyncio]",
        ),
        bare=True,
    ),
    "instructor": Client("instructor", "1.17.0", "instructor_python.py", ("anthropic",)),
    "pydantic-ai": Client("pydantic-ai-slim[openai,anthropic]", "2.68.0", "pydantic_ai_python.py"),
    "crewai": Client("crewai", "1.15.30", "crewai_python.py"),
    "guidance": Client("guidance", "0.3.1", "guidance_python.py", ("openai",)),
    "outlines": Client("outlines", "1.3.3", "outlines_python.py", ("openai", "ollama")),
    "dspy": Client("dspy", "3.4.1", "dspy_python.py", ("numpy",)),
    "llama-index": Client(
        "llama-index-llms-openai-like",
        "0.8.1",
        "llama_index_python.py",
        ("llama-index-llms-ollama", "llama-index-embeddings-openai-like"),
    ),
    "haystack": Client("haystack-ai", "3.4.1", "haystack_python.py"),
    "smolagents": Client("smolagents[openai]", "1.26.0", "smolagents_python.py"),
    "autogen": Client("autogen-agentchat", "0.7.5", "autogen_python.py", ("autogen-ext[openai]==0.7.5",)),
    "ag2": Client("ag2[openai]", "0.11.5", "ag2_python.py"),
    "semantic-kernel": Client("semantic-kernel", "1.45.0", "semantic_kernel_python.py"),
    "openai-agents": Client("openai-agents", "0.24.0", "openai_agents_python.py"),
    "mirascope": Client("mirascope[openai]", "2.8.2", "mirascope_python.py"),
    "aisuite": Client("aisuite[openai]", "0.2.0", "aisuite_python.py", ("mcp", "nest_asyncio")),
    "magentic": Client("magentic", "0.41.1", "magentic_python.py"),
    "agno": Client("agno", "3.1.10", "agno_python.py", ("openai",)),
    "strands": Client("strands-agents[openai,ollama]", "1.62.0", "strands_python.py"),
    "griptape": Client("griptape[drivers-prompt-openai]", "1.13.0", "griptape_python.py"),
    "camel-ai": Client("camel-ai", "0.2.90", "camel_python.py", ("mcp<2",)),
    "atomic-agents": Client("atomic-agents", "1.1.11", "atomic_agents_python.py", ("instructor<1.8",)),
    "google-adk": Client("google-adk", "2.13.0", "google_adk_python.py", ("litellm",)),
    "azure-ai-inference": Client("azure-ai-inference", "1.0.0b9", "azure_python.py"),
    "mem0": Client("mem0ai", "2.2.1", "mem0_python.py"),
    "chromadb": Client("chromadb", "1.5.9", "chromadb_python.py", ("openai", "ollama")),
    "shell-gpt": Client("shell-gpt", "1.5.1", "shell_gpt.py", ("click",)),
    "gptme": Client("gptme", "0.35.1", "gptme_cli.py"),
    "aider": Client("aider-chat", "0.86.2", "aider_cli.py"),
    "open-interpreter": Client("open-interpreter", "0.4.3", "open_interpreter.py", ("setuptools<81",)),
    "openai-node": Client("openai", "6.49.0", "openai_node.mjs"),
    "anthropic-node": Client("@anthropic-ai/sdk", "1.14.0", "anthropic_node.mjs"),
    "ollama-node": Client("ollama", "0.6.4", "ollama_node.mjs"),
    "continue": Client("@continuedev/openai-adapters", "1.37.0", "continue.mjs"),
    "codex": Client("@openai/codex", "0.171.0", "codex_cli.mjs"),
    "claude-code": Client("@anthropic-ai/claude-code", "2.1.197", "claude_code.mjs"),
    "ai-sdk": Client(
        "ai",
        "6.0.326",
        "ai_sdk.mjs",
        (
            "@ai-sdk/anthropic@3.0.140",
            "@ai-sdk/openai-compatible@2.0.92",
            "@ai-sdk/openai@3.0.141",
            "ollama-ai-provider-v2@3.6.0",
        ),
    ),
    "langchain-node": Client(
        "@langchain/openai",
        "1.5.8",
        "langchain_node.mjs",
        ("@langchain/core@1.4.0", "@langchain/ollama@1.3.0", "zod@4.6.7"),
    ),
    "openai-agents-node": Client("@openai/agents", "0.20.0", "openai_agents_node.mjs", ("zod@4.6.7",)),
    "llamaindex-node": Client(
        "@llamaindex/openai",
        "0.4.22",
        "llamaindex_node.mjs",
        ("@llamaindex/ollama@0.1.23", "llamaindex@0.12.1", "zod@4.6.7"),
    ),
}
