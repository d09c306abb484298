// The openai package of Node against `nibble serve`. usage: node openai_node.mjs BASE_URL
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const check = (label, ok) => {
  console.log((ok ? "ok " : "not ok ") + label);
  if (!ok) process.exit(1);
};

const models = await client.models.list();
const model = models.data[0].id;
const plain = await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0 });
check("chat", plain.choices[0].message.content.length > 0 && plain.usage.completion_tokens === 12);
let text = "", usage = null;
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
check("stream equals plain", text === plain.choices[0].message.content && usage.completion_tokens === 12);
try {
  await client.chat.completions.create({ model: "nope", messages });
  check("unknown model", false);
} catch (e) {
  check("unknown model", e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
}
const stream = await client.chat.completions.create({ model, messages, max_tokens: 200, stream: true });
for await (const chunk of stream) { stream.controller.abort(); break; }
check("abort", true);
const r = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 8, temperature: 0 });
check("responses", r.output_text.length > 0 && r.status === "incomplete");
console.log("all passed");
