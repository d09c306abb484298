"""LiteLLM against `nibble serve`: plain, streamed, async, its vLLM provider, text completion, tools, JSON schema, errors, a router.

usage: litellm_client.py BASE_URL
"""
import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its price list is the one it ships: nothing is fetched
import litellm

litellm.telemetry = False
base = sys.argv[1]
hello = [{"role": "user", "content": "Say hello."}]
model = litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="openai", api_key="none", api_base=base)[0]
name = model.split("/", 1)[-1]
common = {"api_base": base, "api_key": "none", "max_tokens": 12, "temperature": 0, "num_retries": 0}


def check(label, ok):
    print(("ok " if ok else "not ok ") + label, flush=True)
    if not ok:
        sys.exit(1)


plain = litellm.completion(model="openai/" + name, messages=hello, **common)
text = plain.choices[0].message.content
check("completion", text and plain.usage.completion_tokens == 12 and plain.choices[0].finish_reason == "length")
vllm = litellm.completion(model="hosted_vllm/" + name, messages=hello, extra_body={"ignore_eos": True, "top_k": 1, "repetition_penalty": 1.0}, **common)
check("vLLM provider, extra fields", vllm.choices[0].message.content == text)
chunks = list(litellm.completion(model="openai/" + name, messages=hello, stream=True, stream_options={"include_usage": True}, **common))
whole = litellm.stream_chunk_builder(chunks, messages=hello)
check("stream", whole.choices[0].message.content == text and whole.usage.completion_tokens == 12)
old = litellm.text_completion(model="text-completion-openai/" + name, prompt="The capital of France is", **common)
check("text completion", bool(old.choices[0].text))


async def together():
    return await asyncio.gather(*[litellm.acompletion(model="openai/" + name, messages=hello, **common) for _ in range(4)])


check("async", [r.choices[0].message.content for r in asyncio.run(together())] == [text] * 4)

tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 16}}, "required": ["city"], "additionalProperties": False}}}
r = litellm.completion(model="openai/" + name, messages=[{"role": "user", "content": "Weather in Paris?"}], tools=[tool],
                       tool_choice={"type": "function", "function": {"name": "get_weather"}}, **{**common, "max_tokens": 200})
call = r.choices[0].message.tool_calls[0]
check("tool", call.function.name == "get_weather" and "city" in json.loads(call.function.arguments))
shape = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}}, "required": ["age"], "additionalProperties": False}
r = litellm.completion(model="openai/" + name, messages=hello, response_format={"type": "json_schema", "json_schema": {
    "name": "person", "schema": shape, "strict": True}}, **{**common, "max_tokens": 100})
check("JSON schema", isinstance(json.loads(r.choices[0].message.content)["age"], int))
for label, kind, more in (("unknown model", litellm.NotFoundError, {"model": "openai/nope"}),
                          ("bad value", litellm.BadRequestError, {"temperature": 7}),
                          ("too long", litellm.ContextWindowExceededError, {"messages": [{"role": "user", "content": "word " * 100000}]})):
    try:
        litellm.completion(**{"model": "openai/" + name, "messages": hello, **common, **more})
        check(label, False)
    except kind:
        check(label, True)
router = litellm.Router(model_list=[{"model_name": "small", "litellm_params": {"model": "openai/" + name, "api_base": base, "api_key": "none"}},
                                    {"model_name": "down", "litellm_params": {"model": "openai/" + name, "api_base": "http://127.0.0.1:9/v1", "api_key": "none"}}],
                        fallbacks=[{"down": ["small"]}], num_retries=0)
check("router", router.completion(model="small", messages=hello, max_tokens=12, temperature=0).choices[0].message.content == text)
check("router falls back", router.completion(model="down", messages=hello, max_tokens=12, temperature=0).choices[0].message.content == text)
print("all passed")
