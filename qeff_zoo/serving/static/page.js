// The page of a server: conversations with its models. Chats live in this tab, and end with it.

import { element, markdown } from "./markdown.js";
import { ask, kindOf, Refusal, setKey, textOf, typesOf } from "./requests.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 60; // milliseconds between two renderings of a message
let models = [];
let chats = [];
let chat = null; // { messages }, the one that is shown
let files = [];
let running = null; // AbortController

// --- models and settings -----------------------------------------------------------------------

const chosen = () => models.find((one) => one.id === $("model").value);

async function loadModels() {
  try {
    models = (await (await ask("v1/models")).json()).data;
  } catch (error) {
    failed(error);
  }
  const before = $("model").value;
  $("model").replaceChildren(...models.map(({ id }) => element("option", { value: id, textContent: id })));
  if (models.some(({ id }) => id === before)) $("model").value = before;
  showModel();
}

function showModel() {
  const types = typesOf(chosen());
  const loads = chosen()?.status?.value === "unloaded" ? " (it loads the model first)" : "";
  $("text").placeholder = kindOf(chosen()).hint + loads;
  $("file").accept = types.join();
  $("attach").hidden = !types.length;
  files = files.filter(fits);
  showFiles();
}

function failed(error) {
  if (error.name === "AbortError") return;
  $("status").textContent = error.message;
  if (error.status === 401 && !$("key-dialog").open) $("key-dialog").showModal();
}

/** Return the parameters of a request; an empty field is left out. */
function options() {
  const found = {};
  for (const [name, value] of new FormData($("settings"))) {
    if (!value.trim() || name === "colors") continue;
    found[name] = $("settings").elements[name].type === "number" ? Number(value) : value;
  }
  if (found.tools) {
    try {
      found.tools = JSON.parse(found.tools);
    } catch (error) {
      throw new Refusal(400, `The tools in the settings are no JSON: ${error.message}`);
    }
  }
  return found;
}

/** Numbers in the settings: parameters of the API with their labels. The server checks their values. */
const NUMBERS = {
  temperature: "Temperature", top_p: "Top p", top_k: "Top k", min_p: "Min p", repetition_penalty: "Repetition penalty",
  presence_penalty: "Presence penalty", max_tokens: "Maximum of tokens", seed: "Seed",
};

function addNumbers() {
  const field = ([name, label]) => element("label", {}, label, element("input", { type: "number", name, step: "any" }));
  $("settings").querySelector("label").after(...Object.entries(NUMBERS).map(field));
}

function applySettings() {
  const values = Object.fromEntries(new FormData($("settings")));
  document.documentElement.style.colorScheme = values.colors;
  sessionStorage.setItem("settings", JSON.stringify(values));
}

function restoreSettings() {
  const values = JSON.parse(sessionStorage.getItem("settings") ?? "{}");
  for (const [name, value] of Object.entries(values)) $("settings").elements[name].value = value;
  applySettings();
}

// --- files -------------------------------------------------------------------------------------

const fits = (file) => typesOf(chosen()).includes(`${file.type.split("/")[0]}/*`);

function addFiles(added) {
  const refused = [...added].filter((file) => !fits(file)).map(({ name }) => name);
  files.push(...[...added].filter(fits));
  if (refused.length) $("status").textContent = `This model takes no such file: ${refused.join(", ")}`;
  showFiles();
}

function showFiles() {
  const entry = (file) => {
    const remove = element("button", { type: "button", ariaLabel: `Remove ${file.name}`, textContent: "×" });
    remove.onclick = () => {
      files = files.filter((one) => one !== file);
      showFiles();
      $("text").focus();
    };
    return element("li", {}, `${file.name} `, remove);
  };
  $("files").replaceChildren(...files.map(entry));
}

async function partOf(file) {
  const reader = new FileReader();
  await new Promise((done) => {
    reader.onloadend = done; // a file that cannot be read has no result
    reader.readAsDataURL(file);
  });
  const [url, [kind, format]] = [reader.result ?? "", file.type.split("/")];
  if (kind === "audio") return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
  return kind === "image" ? { type: "image_url", image_url: { url } } : { type: "video_url", video_url: { url } };
}

// --- messages ----------------------------------------------------------------------------------

/** Show a message at the end of the log; returns a function that shows its present content. */
function show(message) {
  const name = message.model ?? "You";
  const [media, text, calls, error, actions] = ["media", "text", "calls", "error", "actions"].map((className) =>
    element("div", { className }),
  );
  const reasoning = element("p");
  const thoughts = element("details", { open: true }, element("summary", {}, "Reasoning"), reasoning);
  const shown = [element("h2", {}, name), media, thoughts, text, calls, error, actions];
  $("log").append(element("article", { className: message.role, ariaLabel: name }, ...shown));
  const parts = Array.isArray(message.content) ? message.content : [];
  media.append(...parts.filter((part) => part.type !== "text").map(showFile));
  return () => {
    const low = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
    reasoning.textContent = message.reasoning_content ?? "";
    thoughts.hidden = !message.reasoning_content;
    if (message.ended && !message.closed) thoughts.open = !(message.closed = true);
    text.replaceChildren(...(message.role === "assistant" ? markdown(message.content) : [textOf(message)]));
    calls.replaceChildren(...(message.tool_calls ?? []).map(showCall));
    error.textContent = message.error ?? "";
    if (message.ended) actions.replaceChildren(...showActions(message));
    if (low) $("log").scrollTop = $("log").scrollHeight;
  };
}

function showFile({ image_url: image, video_url: video, input_audio: audio }) {
  if (image) return element("img", { src: image.url, alt: "Attached image" });
  if (video) return element("video", { src: video.url, controls: true });
  return element("audio", { src: `data:audio/${audio.format};base64,${audio.data}`, controls: true, ariaLabel: "Attached recording" });
}

function showCall({ function: { name, arguments: given } }) {
  return element("details", { open: true }, element("summary", {}, `Call of ${name}`), element("pre", { tabIndex: 0 }, given));
}

function showActions(message) {
  const copy = element("button", { type: "button" }, "Copy");
  copy.onclick = () => navigator.clipboard?.writeText(message.content);
  const retry = element("button", { type: "button" }, "Retry");
  retry.onclick = () => {
    if (running) return;
    const at = chat.messages.indexOf(message); // -1 for an answer that failed
    if (at > 0) chat.messages.splice(at);
    showChat();
    answer();
  };
  const { usage, seconds, ended } = message;
  const cut = { length: "cut at the limit of tokens", stopped: "stopped" }[ended];
  const speed = usage && seconds ? `${usage.completion_tokens} tokens, ${(usage.completion_tokens / seconds).toFixed(0)} a second` : "";
  return [copy, retry, [speed, cut].filter(Boolean).join(", ")];
}

function showChat() {
  $("log").replaceChildren();
  for (const message of chat.messages) show(message)();
  const hint = "Write below. Enter sends, Shift+Enter adds a line, Escape stops.";
  if (!chat.messages.length) $("log").append(element("p", { className: "hint" }, hint));
  const titled = chats.filter((one) => one.messages.length || one === chat);
  const title = ({ messages: [first] }) => (first ? `${first.title}`.slice(0, 40) : "New chat");
  $("chats").replaceChildren(
    ...titled.map((one) => element("option", { value: chats.indexOf(one), textContent: title(one), selected: one === chat })),
  );
  $("chats").hidden = titled.length < 2;
}

function newChat() {
  chats = chats.filter((one) => one.messages.length);
  chats.push((chat = { messages: [] }));
  showChat();
  $("text").focus();
}

/** Generate the next message of the chat. */
async function answer() {
  const { messages } = chat;
  const message = { role: "assistant", content: "", model: $("model").value };
  const update = show(message);
  let timer = 0;
  const changed = () => (timer ||= setTimeout(() => ((timer = 0), update()), PAUSE));
  running = new AbortController();
  showRunning();
  const begun = performance.now();
  try {
    const request = { model: message.model, messages: [...messages], options: options(), message, changed };
    await kindOf(chosen()).run({ ...request, signal: running.signal });
    message.ended ??= "stop";
    $("status").textContent = "The answer is complete.";
  } catch (error) {
    message.ended = "stopped";
    if (error.name === "AbortError") $("status").textContent = "Stopped.";
    else message.error = error.message;
    failed(error);
  }
  clearTimeout(timer);
  message.seconds = (performance.now() - begun) / 1000;
  if (message.content || message.tool_calls || message.reasoning_content) messages.push(message);
  running = null;
  update();
  showRunning();
  if (!chosen()?.capabilities) loadModels(); // it is loaded now
}

function showRunning() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("log").ariaBusy = String(Boolean(running));
  for (const id of ["new", "chats", "model"]) $(id).disabled = Boolean(running);
  if (running) $("status").textContent = "The model writes …";
}

async function send() {
  const [text, added] = [$("text").value, files];
  if (running || !(text.trim() || added.length)) return;
  $("text").value = "";
  files = [];
  showFiles();
  const parts = await Promise.all(added.map(partOf));
  const content = parts.length ? [...parts, ...(text.trim() ? [{ type: "text", text }] : [])] : text;
  chat.messages.push({ role: "user", content, files: added, title: text.trim() || added[0].name });
  showChat();
  await answer();
}

// --- events ------------------------------------------------------------------------------------

$("composer").onsubmit = (event) => {
  event.preventDefault();
  send();
};
$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
};
$("text").onpaste = (event) => {
  if (event.clipboardData.files.length) addFiles(event.clipboardData.files);
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
};
$("stop").onclick = () => {
  running?.abort();
  $("text").focus();
};
$("attach").onclick = () => $("file").click();
$("file").onchange = () => {
  addFiles($("file").files);
  $("file").value = "";
};
$("model").onchange = showModel;
$("new").onclick = newChat;
$("chats").onchange = () => {
  chat = chats[$("chats").value];
  showChat();
};
$("open-settings").onclick = () => $("settings-dialog").showModal();
$("settings").onchange = applySettings;
$("change-key").onclick = () => $("key-dialog").showModal();
$("key-form").onsubmit = () => {
  setKey($("key").value);
  $("key").value = $("status").textContent = "";
  loadModels();
};

addNumbers();
restoreSettings();
newChat();
loadModels();
