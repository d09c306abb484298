"""The openai package against `nibble serve`: sync, async, streaming, several choices, log-probabilities, errors, tools, parsed output.

usage: openai_sdk.py BASE_URL [--text-only]     (BASE_URL such as http://127.0.0.1:8000/v1)
"""
import asyncio
import json
import sys

import openai

base = sys.argv[1]
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
hello = [{"role": "user", "content": "Say hello to a friend."}]


def check(label, ok):
    print(("ok " if ok else "not ok ") + label, flush=True)
    if not ok:
        sys.exit(1)


models = client.models.list()
model = models.data[0].id
check("models", client.models.retrieve(model).id == model)

plain = client.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0)
text = plain.choices[0].message.content
check("chat", text and plain.usage.completion_tokens == 12 and plain.choices[0].finish_reason == "length")

parts = []
usage = None
for chunk in client.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0, stream=True,
                                            stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    if chunk.choices and chunk.choices[0].delta.content:
        parts.append(chunk.choices[0].delta.content)
check("stream equals plain", "".join(parts) == text and usage.completion_tokens == 12)

many = client.chat.completions.create(model=model, messages=hello, max_tokens=8, temperature=0.8, n=3, seed=5)
again = client.chat.completions.create(model=model, messages=hello, max_tokens=8, temperature=0.8, n=3, seed=5)
check("choices and seed", [c.message.content for c in many.choices] == [c.message.content for c in again.choices] and len(many.choices) == 3)

lp = client.chat.completions.create(model=model, messages=hello, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)
entries = lp.choices[0].logprobs.content
check("logprobs", len(entries) == 4 and all(e.logprob == max(t.logprob for t in e.top_logprobs) for e in entries))
check("logprobs spell the text", b"".join(bytes(e.bytes) for e in entries).decode() == lp.choices[0].message.content)

stop = client.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0, stop=[text[3:6]])
check("stop string", stop.choices[0].message.content == text[:3 + text[3:].index(text[3:6])] and stop.choices[0].finish_reason == "stop")

old = client.completions.create(model=model, prompt="The capital of France is", max_tokens=4, temperature=0, echo=True, logprobs=1)
check("completions", old.choices[0].text.startswith("The capital of France is") and old.choices[0].logprobs.token_logprobs[0] is None)
batch = client.completions.create(model=model, prompt=["One two three", "Four five six"], max_tokens=3, temperature=0)
check("list of prompts", [c.index for c in batch.choices] == [0, 1])


def fails(label, kind, call):
    try:
        call()
    except kind as e:
        check(label, isinstance(e.body, dict) and e.body.get("code") is not None)
        return
    check(label, False)


fails("unknown model", openai.NotFoundError, lambda: client.chat.completions.create(model="nope", messages=hello))
fails("bad value", openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=hello, temperature=7))
fails("too long", openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=hello, max_tokens=10**9))


async def together():
    a = openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0)
    one = await a.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0)
    rest = await asyncio.gather(*[a.chat.completions.create(model=model, messages=hello + [
        {"role": "assistant", "content": "Hello %d." % i}, {"role": "user", "content": "Again."}], max_tokens=6 + i, temperature=0) for i in range(6)],
        a.chat.completions.create(model=model, messages=hello, max_tokens=12, temperature=0))
    return one.choices[0].message.content, rest[-1].choices[0].message.content


alone, crowded = asyncio.run(together())
check("async, same answer in a crowd", alone == text and crowded == text)

shape = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
         "required": ["name", "age"], "additionalProperties": False}
r = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "A person as JSON."}], max_tokens=400, temperature=0,
                                   response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": shape, "strict": True}})
person = json.loads(r.choices[0].message.content)
check("JSON schema", set(person) == {"name", "age"} and isinstance(person["age"], int))

try:
    import pydantic

    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        age: int = pydantic.Field(ge=0, le=120)

    p = client.chat.completions.parse(model=model, messages=[{"role": "user", "content": "A person as JSON."}], max_tokens=400, temperature=0,
                                      response_format=Person)
    check("parse", isinstance(p.choices[0].message.parsed, Person))
except ImportError:
    print("skipped parse: pydantic is not installed")

tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"], "additionalProperties": False}}}
named = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Weather in Paris?"}], max_tokens=400, temperature=0, tools=[tool],
                                       tool_choice={"type": "function", "function": {"name": "get_weather"}})
call = named.choices[0].message.tool_calls[0]
check("named tool", call.function.name == "get_weather" and "city" in json.loads(call.function.arguments) and named.choices[0].finish_reason == "stop")
required = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Weather in Paris?"}], max_tokens=400, temperature=0, tools=[tool],
                                          tool_choice="required")
call = required.choices[0].message.tool_calls[0]
check("required tool", call.function.name == "get_weather" and "city" in json.loads(call.function.arguments) and required.choices[0].finish_reason == "tool_calls")
pieces, name = "", None
for chunk in client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Weather in Paris?"}], max_tokens=400, temperature=0, tools=[tool],
                                            tool_choice={"type": "function", "function": {"name": "get_weather"}}, stream=True):
    for d in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
        name = d.function.name or name
        pieces += d.function.arguments or ""
check("tool call in a stream", name == "get_weather" and json.loads(pieces) == json.loads(named.choices[0].message.tool_calls[0].function.arguments))
again = client.chat.completions.create(model=model, max_tokens=8, temperature=0, messages=[
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."}])
check("tool result", again.choices[0].message.content is not None)
print("all passed")
