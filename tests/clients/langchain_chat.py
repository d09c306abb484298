"""LangChain's ChatOpenAI against `nibble serve`: invoke, stream, batch, a bound tool. usage: langchain_chat.py BASE_URL"""
import sys
from typing import Annotated

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import Field

llm = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="", max_tokens=12, temperature=0, max_retries=0, seed=1)


def check(label, ok):
    print(("ok " if ok else "not ok ") + label, flush=True)
    if not ok:
        sys.exit(1)


plain = llm.invoke("Say hello.")
check("invoke", plain.content and plain.usage_metadata["output_tokens"] == 12 and plain.response_metadata["finish_reason"] == "length")
check("stream", "".join(c.content for c in llm.stream("Say hello.")) == plain.content)
check("batch", [m.content for m in llm.batch(["Say hello.", "Say hello."])] == [plain.content] * 2)
parts = llm.invoke([{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Say hello.", "cache_control": {"type": "ephemeral"}}]}])
check("parts with cache_control", bool(parts.content))


@tool
def weather(city: Annotated[str, Field(max_length=16)]) -> str:
    """Weather of a city."""
    return "sunny in " + city


forced = ChatOpenAI(base_url=sys.argv[1], api_key="none", model="", max_tokens=200, temperature=0, max_retries=0).bind_tools([weather], tool_choice="weather", strict=True)
call = forced.invoke("Weather in Paris?").tool_calls[0]
check("tool", call["name"] == "weather" and isinstance(call["args"]["city"], str))
print("all passed")
