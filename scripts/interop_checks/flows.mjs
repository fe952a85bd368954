// SPDX-License-Identifier: Apache-2.0
// Flows of genuine JavaScript clients: `node flows.mjs MODULES URLS [TEXT …]`, as in flows.py. MODULES is the folder of node_modules.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

const [modules, urlsText, ...texts] = process.argv.slice(2);
const urls = JSON.parse(urlsText);
const require = createRequire(`${modules}/package.json`);
const versionOf = (client) =>
  JSON.parse(readFileSync(`${modules}/node_modules/${client.replace(" (node)", "")}/package.json`)).version;
const load = (name) => import(pathToFileURL(require.resolve(name)));
const ai = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOllama } = await load("ollama-ai-provider-v2");
const { default: OpenAI } = await load("openai");
const { z } = await load("zod");
const { createReactAgent } = await load("@langchain/langgraph/prebuilt");
const { ChatOpenAI } = await load("@langchain/openai");
const { tool } = await load("@langchain/core/tools");

const apiKey = "sesame";
const question = "What is collections.OrderedDict?";
const plan = 'call get_weather {"city": "Rome"}\nsay It is RESULT in Rome.';
const answer = "It is 31 C in Rome.";
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Rome", "Oslo"] } },
  required: ["city"],
  additionalProperties: false,
};
const weather = (city) => (assert.equal(city, "Rome"), "31 C");
const compatible = (name) => createOpenAICompatible({ name: "zoo", baseURL: urls[name], apiKey, supportsStructuredOutputs: true });
const openai = (name) => createOpenAI({ baseURL: urls[name], apiKey });
const ollama = (name) =>
  createOllama({ baseURL: urls[name].replace(/v1$/, "api"), headers: { Authorization: `Bearer ${apiKey}` } });
const node = (name) => new OpenAI({ baseURL: urls[name], apiKey, maxRetries: 0 });
const tools = {
  get_weather: ai.tool({
    description: "Temperature of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => weather(city),
  }),
};
const schema = z.object({ name: z.string().max(12), isCapital: z.boolean() });
const limits = { maxOutputTokens: 60, temperature: 0, maxRetries: 0 };

const graph = (name, options) =>
  createReactAgent({
    llm: new ChatOpenAI({ model: name, apiKey, maxRetries: 0, configuration: { baseURL: urls[name] }, ...options }),
    tools: [tool(({ city }) => weather(city), { name: "get_weather", description: "Temperature of a city.", schema: z.object({ city: z.string() }) })],
  });

async function withTools(model) {
  const result = await ai.generateText({ model, prompt: plan, tools, stopWhen: ai.stepCountIs(3), maxRetries: 0 });
  assert.equal(result.text, answer);
}

const flows = {
  "ai": {
    async generate_text() {
      const { text, usage } = await ai.generateText({ model: compatible("trained")("trained"), prompt: question, ...limits });
      assert.ok(text && usage.outputTokens > 0);
    },
    async stream_text() {
      const model = compatible("trained")("trained");
      let text = "";
      for await (const part of ai.streamText({ model, prompt: question, ...limits }).textStream) text += part;
      assert.equal(text, (await ai.generateText({ model, prompt: question, ...limits })).text);
    },
    async structured_output() {
      const { output } = await ai.generateText({
        model: compatible("trained")("trained"), prompt: question, output: ai.Output.object({ schema }), ...limits,
      });
      assert.equal(typeof output.isCapital, "boolean");
    },
    tools: () => withTools(compatible("scripted")("scripted")),
    async tools_in_a_stream() {
      const model = compatible("scripted")("scripted");
      const result = ai.streamText({ model, prompt: plan, tools, stopWhen: ai.stepCountIs(3), maxRetries: 0 });
      assert.equal((await result.steps).length, 2);
      assert.equal(await result.text, answer);
    },
    async embed() {
      const { embeddings } = await ai.embedMany({
        model: compatible("embeddings").embeddingModel("embeddings"), values: ["a cat", "a kitten"], maxRetries: 0,
      });
      assert.equal(embeddings[0].length, 384);
    },
    async openai_default_responses() {
      const { text } = await ai.generateText({ model: openai("scripted")("scripted"), prompt: "say Hello", maxRetries: 0 });
      assert.equal(text, "Hello");
    },
    openai_default_responses_with_tools: () => withTools(openai("scripted")("scripted")),
    async openai_responses_in_a_stream() {
      let text = "";
      const model = openai("scripted").responses("scripted");
      for await (const part of ai.streamText({ model, prompt: "say Hello", maxRetries: 0 }).textStream) text += part;
      assert.equal(text, "Hello");
    },
  },
  "ollama-ai-provider-v2": {
    async generate_text() {
      const options = { prompt: question, ...limits };
      const { text, usage } = await ai.generateText({ model: ollama("trained")("trained"), ...options });
      assert.equal(text, (await ai.generateText({ model: compatible("trained")("trained"), ...options })).text);
      assert.equal(usage.outputTokens, limits.maxOutputTokens);
    },
    async stream_text() {
      const options = { model: ollama("trained")("trained:latest"), prompt: question, ...limits };
      let text = "";
      for await (const part of ai.streamText(options).textStream) text += part;
      assert.equal(text, (await ai.generateText(options)).text);
    },
    async structured_output() {
      const { output } = await ai.generateText({
        model: ollama("trained")("trained"), prompt: question, output: ai.Output.object({ schema }), ...limits,
      });
      assert.equal(typeof output.isCapital, "boolean");
    },
    tools: () => withTools(ollama("scripted")("scripted")),
    async tools_in_a_stream() {
      const model = ollama("scripted")("scripted");
      const result = ai.streamText({ model, prompt: plan, tools, stopWhen: ai.stepCountIs(3), maxRetries: 0 });
      assert.equal((await result.steps).length, 2);
      assert.equal(await result.text, answer);
    },
    async a_call_is_required() {
      const weather = ai.tool({ inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]) }) });
      for (const toolChoice of ["required", { type: "tool", toolName: "weather" }]) {
        const { toolCalls } = await ai.generateText({
          model: ollama("trained")("trained"), prompt: question, tools: { weather }, toolChoice, ...limits,
        });
        assert.ok(["Rome", "Oslo"].includes(toolCalls[0].input.city));
      }
    },
    async embed() {
      const model = ollama("embeddings").embeddingModel("embeddings");
      const { embeddings } = await ai.embedMany({ model, values: ["a cat", "a kitten"], maxRetries: 0 });
      assert.equal(embeddings[0].length, 384);
    },
  },
  "@langchain/langgraph": {
    async agent_with_tools() {
      const { messages } = await graph("scripted", {}).invoke({ messages: [{ role: "user", content: plan }] });
      assert.deepEqual(messages.map((one) => one.getType()), ["human", "ai", "tool", "ai"]);
      assert.equal(messages.at(-1).content, answer);
    },
    async agent_over_responses() {
      const { messages } = await graph("scripted", { useResponsesApi: true }).invoke({ messages: [{ role: "user", content: plan }] });
      assert.equal(messages.at(-1).text, answer);
    },
    async agent_in_a_stream() {
      let text = "";
      const options = { streamMode: "messages" };
      for await (const [message] of await graph("scripted", {}).stream({ messages: [{ role: "user", content: plan }] }, options)) {
        if (message.getType() === "ai") text += message.content;
      }
      assert.equal(text, answer);
    },
  },
  "openai (node)": {
    async chat_and_stream() {
      const body = { model: "trained", messages: [{ role: "user", content: question }], max_tokens: 12, temperature: 0 };
      const whole = await node("trained").chat.completions.create(body);
      let text = "";
      for await (const chunk of await node("trained").chat.completions.create({ ...body, stream: true })) {
        text += chunk.choices[0]?.delta?.content ?? "";
      }
      assert.equal(text, whole.choices[0].message.content);
    },
    async run_tools() {
      const runner = node("scripted").chat.completions.runTools({
        model: "scripted",
        messages: [{ role: "user", content: plan }],
        tools: [{
          type: "function",
          function: { name: "get_weather", parameters, parse: JSON.parse, function: ({ city }) => weather(city) },
        }],
      });
      assert.equal(await runner.finalContent(), answer);
    },
    async responses() {
      const result = await node("scripted").responses.create({ model: "scripted", input: "say Hello" });
      assert.equal(result.output_text, "Hello");
    },
    async responses_in_a_stream() {
      const stream = node("scripted").responses.stream({ model: "scripted", input: "say Hello" });
      assert.equal((await stream.finalResponse()).output_text, "Hello");
    },
  },
};

for (const [client, named] of Object.entries(flows)) {
  for (const [name, flow] of Object.entries(named)) {
    if (texts.length && !texts.some((text) => `${client}: ${name}`.includes(text))) continue;
    const begun = Date.now();
    let reason = "";
    try {
      await flow();
    } catch (error) {
      const line = /flows\.mjs:(\d+)/.exec(error.stack ?? "")?.[1] ?? "?";
      reason = `${error.name} at flows.mjs:${line}: ${String(error.message).replace(/\s+/g, " ").slice(0, 300)}`;
    }
    const row = { client: `${client} ${versionOf(client)}`, flow: name, passed: !reason, reason };
    console.log(JSON.stringify({ ...row, seconds: (Date.now() - begun) / 1000 }));
  }
}
process.exit(0);
