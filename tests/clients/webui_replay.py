"""What Open WebUI sends, replayed without it: its headers, field sets and habits, with the standard library alone.

Model list by key, a streamed chat with its extra fields and usage, the tasks behind a chat (title, tags, follow-ups, search queries,
autocompletion: one user message, not streamed, JSON wanted), tool rounds in native mode, content in parts, stop by hanging up.

usage: webui_replay.py BASE_URL      (BASE_URL such as http://127.0.0.1:8000/v1)
"""
import http.client
import json
import sys
import time
import urllib.parse

base = urllib.parse.urlsplit(sys.argv[1])
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer none", "Accept": "*/*", "Accept-Encoding": "gzip, deflate, br",
           "User-Agent": "Python/3.11 aiohttp/3.12", "X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-User-Id": "7d1c", "X-OpenWebUI-User-Role": "admin",
           "X-OpenWebUI-Chat-Id": "0b5f"}


def check(label, ok):
    print(("ok " if ok else "not ok ") + label, flush=True)
    if not ok:
        sys.exit(1)


def ask(method, path, body=None):
    c = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    c.request(method, base.path + path, json.dumps(body) if body is not None else None, HEADERS)
    return c, c.getresponse()


def answer(method, path, body=None):
    c, r = ask(method, path, body)
    v = json.loads(r.read())
    c.close()
    return r.status, v


def events(r):
    for line in r:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


status, models = answer("GET", "/models")
card = models["data"][0]
check("model list", status == 200 and card["id"] and card["object"] == "model" and "owned_by" in card)
model = card["id"]
talk = [{"role": "system", "content": "You help Ann."}, {"role": "user", "content": "Say hello."}]
chat = {"model": model, "messages": talk, "temperature": 0, "max_tokens": 24, "stream": True, "stream_options": {"include_usage": True},
        "seed": 3, "stop": ["###"], "top_p": 0.9, "top_k": 40, "min_p": 0, "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1.1,
        "repeat_last_n": 64, "tfs_z": 1, "mirostat": 0, "num_ctx": 1024, "logit_bias": {}, "user": "7d1c",
        "chat_id": "0b5f", "id": "c3a9", "session_id": "9e1d", "background_tasks": {"title_generation": True, "tags_generation": True},
        "features": {"web_search": False, "image_generation": False, "code_interpreter": False}, "variables": {"{{USER_NAME}}": "Ann"}}
c, r = ask("POST", "/chat/completions", chat)
check("streams as text/event-stream, not compressed", r.status == 200 and r.headers["Content-Type"].startswith("text/event-stream") and "Content-Encoding" not in r.headers)
got = list(events(r))
c.close()
text = "".join(e["choices"][0]["delta"].get("content") or "" for e in got if e["choices"])
check("streamed chat", text and got[0]["choices"][0]["delta"]["role"] == "assistant" and got[-1]["usage"]["completion_tokens"] == 24)
status, plain = answer("POST", "/chat/completions", {**{k: v for k, v in chat.items() if k != "stream_options"}, "stream": False})
check("the same, not streamed", status == 200 and plain["choices"][0]["message"]["content"] == text)
status, again = answer("POST", "/chat/completions", {**chat, "stream": False, "stream_options": None, "messages": talk + [
    {"role": "assistant", "content": text}, {"role": "user", "content": [{"type": "text", "text": "Again."}]}]})
check("second turn, content in parts", status == 200 and again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)

TASKS = {
    "title": "Task: a title of three to five words for the chat below, answered as JSON: {\"title\": \"...\"}",
    "tags": "Task: one to three tags for the chat below, answered as JSON: {\"tags\": [\"...\"]}",
    "follow-ups": "Task: three questions the user may ask next, answered as JSON: {\"follow_ups\": [\"...\"]}",
    "queries": "Task: search queries for the chat below, answered as JSON: {\"queries\": [\"...\"]}",
    "autocompletion": "Task: finish the text below, answered as JSON: {\"text\": \"...\"}",
    "emoji": "Task: one emoji for the chat below.",
}
for task, words in TASKS.items():
    body = {"model": model, "stream": False, "temperature": 0, "messages": [{"role": "user", "content": words + "\n<chat_history>\nUSER: Say hello.\nASSISTANT: " +
            text + "\n</chat_history>"}], "max_completion_tokens" if task in ("title", "tags") else "max_tokens": 32, "metadata": {"task": task, "chat_id": "0b5f"}}
    status, v = answer("POST", "/chat/completions", body)
    check("task " + task, status == 200 and isinstance(v["choices"][0]["message"]["content"], str))

tools = [{"type": "function", "function": {"name": "get_time", "description": "Time of a place.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "where"}}, "required": ["place"]}}}]
status, v = answer("POST", "/chat/completions", {"model": model, "stream": False, "max_tokens": 24, "temperature": 0, "tools": tools, "messages": talk + [
    {"role": "assistant", "content": "", "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{\"place\": \"Oslo\"}"}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}]})
check("a tool's answer comes back", status == 200 and v["choices"][0]["message"]["role"] == "assistant")
status, v = answer("POST", "/chat/completions", {"model": model, "stream": False, "messages": [{"role": "user", "content": [
    {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]})
check("an image is refused in a sentence", status == 400 and v["error"]["code"] == "unsupported_content" and v["error"]["message"])

for _ in range(3):  # the stop button: the connection goes away in mid-answer
    c, r = ask("POST", "/chat/completions", {**chat, "max_tokens": 800, "ignore_eos": True})
    for event in events(r):
        if event["choices"] and event["choices"][0]["delta"].get("content"):
            break
    r.close()
    c.close()
for _ in range(400):
    c = http.client.HTTPConnection(base.hostname, base.port, timeout=120)
    c.request("GET", "/load")
    load = json.loads(c.getresponse().read())
    c.close()
    if load["running"] == 0 and load["queued"] == 0 and load["kv_usage"] == 0:
        break
    time.sleep(0.05)
check("stop by hanging up leaves nothing running", load["running"] == 0 and load["kv_usage"] == 0)
print("all passed")
