// The Vercel AI SDK against `nibble serve`, by its openai-compatible and openai providers: text, streams, tools, objects, abort, errors.
// usage: node ai_sdk.mjs BASE_URL
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = process.argv[2];
const name = (await (await fetch(baseURL + "/models")).json()).data[0].id;
const compatible = createOpenAICompatible({ name: "nibble", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true })(name);
const openai = createOpenAI({ baseURL, apiKey: "none" });
const check = (label, ok) => {
  console.log((ok ? "ok " : "not ok ") + label);
  if (!ok) process.exit(1);
};
const messages = [{ role: "user", content: "Say hello." }];
const weather = tool({
  description: "Weather of a city.",
  inputSchema: z.object({ city: z.string().max(16) }),
  execute: async ({ city }) => ({ city, sky: "sunny" }),
});

let text;
for (const [label, model] of [["compatible", compatible], ["openai chat", openai.chat(name)], ["openai responses", openai.responses(name)]]) {
  const plain = await generateText({ model, messages, maxOutputTokens: 12, temperature: 0, maxRetries: 0 });
  text ??= plain.text;
  check(label + ": generateText", plain.text === text && text.length > 0 && plain.finishReason === "length" && plain.usage.outputTokens === 12);
  const stream = streamText({ model, messages, maxOutputTokens: 12, temperature: 0, maxRetries: 0 });
  let parts = "";
  for await (const part of stream.textStream) parts += part;
  check(label + ": streamText", parts === text && (await stream.usage).outputTokens === 12 && (await stream.finishReason) === "length");
  const object = await generateText({
    model, messages, maxOutputTokens: 400, temperature: 0, maxRetries: 0,
    output: Output.object({ schema: z.object({ name: z.string().max(12), age: z.number().int().min(0).max(120) }) }),
  });
  check(label + ": object", typeof object.output.name === "string" && Number.isInteger(object.output.age));
}
for (const [label, model] of [["compatible", compatible], ["openai chat", openai.chat(name)]]) {
  const called = await generateText({
    model, messages, maxOutputTokens: 900, temperature: 0, maxRetries: 0, tools: { weather }, toolChoice: { type: "tool", toolName: "weather" },
    stopWhen: stepCountIs(1),
  });
  check(label + ": tool", called.toolCalls[0].toolName === "weather" && called.toolResults[0].output.sky === "sunny");
  const streamed = streamText({
    model, messages, maxOutputTokens: 900, temperature: 0, maxRetries: 0, tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(1),
  });
  const calls = await streamed.toolCalls;
  check(label + ": streamed tool", calls[0].toolName === "weather" && typeof calls[0].input.city === "string");
}
const answer = await generateText({
  model: compatible, maxOutputTokens: 8, temperature: 0, maxRetries: 0,
  messages: [...messages,
    { role: "assistant", content: [{ type: "tool-call", toolCallId: "call_1", toolName: "weather", input: { city: "Paris" } }] },
    { role: "tool", content: [{ type: "tool-result", toolCallId: "call_1", toolName: "weather", output: { type: "json", value: { sky: "sunny" } } }] }],
});
check("tool result", answer.text.length > 0);
const stop = new AbortController();
let error = null, aborted = false;
const long = streamText({ model: compatible, messages, maxOutputTokens: 200, maxRetries: 0, abortSignal: stop.signal, onAbort: () => { aborted = true; }, onError: (e) => { error = e; } });
try {
  for await (const part of long.fullStream) if (part.type === "text-delta") stop.abort();
} catch { aborted = true; }
check("abort", aborted && error === null);
try {
  await generateText({ model: createOpenAICompatible({ name: "nibble", baseURL, apiKey: "none" })("nope"), messages, maxRetries: 0 });
  check("unknown model", false);
} catch (e) {
  check("unknown model", e.statusCode === 404 && e.message.includes("nope"));
}
console.log("all passed");
