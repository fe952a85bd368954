// Requests to the API of this server, by the capabilities of a model.

let apiKey = sessionStorage.getItem("key") ?? "";

export function setKey(key) {
  apiKey = key;
  sessionStorage.setItem("key", key);
}

/** Failed request, with its HTTP status. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Name a server that no request reaches; another error stays. */
function unreachable(error) {
  if (!(error instanceof TypeError)) throw error; // a request that the page ends is an AbortError
  throw new Refusal(0, `The server at ${location.host} cannot be reached. Is it running? Then try again.`);
}

/** Send a request; a body that is no form is sent as JSON. Returns the response, or throws a Refusal. */
export async function ask(path, body, signal) {
  const headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
  if (body && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  const response = await fetch(path, { method: body ? "POST" : "GET", headers, body, signal }).catch(unreachable);
  if (response.ok) return response;
  const found = await response.json().catch(() => ({}));
  throw new Refusal(response.status, found.error?.message ?? `${response.status} ${response.statusText}`);
}

async function json(path, body, signal) {
  return (await ask(path, body, signal)).json();
}

/** Yield the objects of a stream of server-sent events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  const next = () => reader.read().catch(unreachable);
  for (let read = await next(); !read.done; read = await next()) {
    const lines = (rest + read.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}

/** Append a chunk of a stream to a message. */
function grow(message, chunk) {
  if (chunk.error) throw new Refusal(500, chunk.error.message);
  if (chunk.usage) message.usage = chunk.usage;
  for (const choice of chunk.choices) {
    const delta = choice.delta ?? { content: choice.text };
    message.content += delta.content ?? "";
    if (delta.reasoning_content) message.reasoning_content = (message.reasoning_content ?? "") + delta.reasoning_content;
    for (const { index, id, function: part } of delta.tool_calls ?? []) {
      message.tool_calls ??= [];
      const call = (message.tool_calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } });
      call.function.name += part.name ?? "";
      call.function.arguments += part.arguments ?? "";
    }
    message.ended = choice.finish_reason ?? message.ended;
  }
}

async function stream(path, body, message, changed, signal) {
  const response = await ask(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  for await (const chunk of events(response)) {
    grow(message, chunk);
    changed();
  }
}

/** Return a part as the API takes it: the text of a file begins with its name. */
const sentPart = ({ name, ...part }) => (name && part.type === "text" ? { ...part, text: `${name}:\n\n${part.text}\n\n` } : part);

/** Return a message as the API takes it, without what the page keeps beside it. */
function sent({ role, content, reasoning_content, tool_calls, tool_call_id }) {
  const parts = Array.isArray(content) ? content.map(sentPart) : content;
  return { role, content: parts, reasoning_content, tool_calls, tool_call_id };
}

/** Return the text of a message, with that of its files. */
const textOf = ({ content }) => (typeof content === "string" ? content : content.map((part) => sentPart(part).text ?? "").join(""));
const linesOf = (message) => textOf(message).split("\n").filter((line) => line.trim());
const listed = (pairs) => pairs.map(([score, text]) => `- ${score.toFixed(4)} \`${text.replaceAll("`", "'")}\``).join("\n");

/** Generate a chat's next message; of a model of single images, for the newest message alone. */
async function chat({ model, messages, options: { system, ...options }, message, changed, signal }, last) {
  const first = system && !last ? [{ role: "system", content: system }] : [];
  const body = { model, messages: [...first, ...messages.map(sent)].slice(last ? -1 : 0), ...options };
  await stream("v1/chat/completions", body, message, changed, signal);
}

/** What a kind of model does: `hint` for the message, and `run`. */
const KINDS = {
  chat: { hint: "Message", run: (request) => chat(request, false) },
  captioning: { hint: "An image, and text if you like", run: (request) => chat(request, true) },
  completion: {
    hint: "Text to continue",
    async run({ model, messages, options: { system, tools, reasoning_effort, ...options }, message, changed, signal }) {
      const body = { model, prompt: textOf(messages.at(-1)), max_tokens: 256, ...options };
      await stream("v1/completions", body, message, changed, signal);
    },
  },
  transcription: {
    hint: "A recording",
    async run({ model, messages, message, signal }) {
      const recording = [messages.at(-1).content].flat().find((part) => part.type === "input_audio");
      if (!recording) throw new Refusal(400, "Attach a recording.");
      const { data, format } = recording.input_audio;
      const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt());
      const form = new FormData();
      form.append("model", model);
      form.append("file", new File([bytes], recording.name, { type: `audio/${format}` }));
      message.content = (await json("v1/audio/transcriptions", form, signal)).text;
    },
  },
  rerank: {
    hint: "A query, and below it one text a line",
    async run({ model, messages, message, signal }) {
      const [query, ...documents] = linesOf(messages.at(-1));
      if (!documents.length) throw new Refusal(400, "Write a query, and below it one text a line.");
      const { results } = await json("v1/rerank", { model, query, documents }, signal);
      message.content = listed(results.map((one) => [one.relevance_score, documents[one.index]]));
    },
  },
  classification: {
    hint: "One text a line",
    async run({ model, messages, message, signal }) {
      const input = linesOf(messages.at(-1));
      const { data } = await json("v1/classify", { model, input }, signal);
      message.content = listed(data.map((one) => [Math.max(...one.probs), `${one.label}: ${input[one.index]}`]));
    },
  },
};
const OTHER = {
  hint: "",
  async run() {
    throw new Refusal(400, "This page has no use for such a model: call /v1/embeddings, or /v1/pooling for labels of tokens.");
  },
};

/** Return what a model does; one that is not loaded yet chats, as far as the page knows. */
export function kindOf(model) {
  const can = model?.capabilities;
  return can ? (KINDS[Object.keys(KINDS).find((kind) => can.includes(kind))] ?? OTHER) : KINDS.chat;
}

const TYPES = {
  vision: ["image/*"], video: ["video/*"], audio: ["audio/*"], transcription: ["audio/*"],
  chat: ["text/*", "application/pdf"], completion: ["text/*", "application/pdf"],
};

/** Return the media types of files that a model takes; all, as long as the server does not know it. */
export function typesOf(model) {
  return [...new Set((model?.capabilities ?? Object.keys(TYPES)).flatMap((one) => TYPES[one] ?? []))];
}
