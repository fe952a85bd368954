// The page of a server: conversations with its models.

import { addMessage, exported, has, imported, newChat, pathOf, showVersion, Store } from "./chats.js";
import { button, confirmed, download, element } from "./elements.js";
import { fits, partOf } from "./files.js";
import { contentOf, partsOf, showMessage } from "./messages.js";
import { ask, kindOf, Refusal, setKey, typesOf } from "./requests.js";

const $ = (id) => document.getElementById(id);
const PAUSE = 60; // milliseconds between two renderings of a message
const TITLE = 60; // characters
const store = new Store();
let models = [];
let chats = [];
let chat = newChat(); // the one that is shown
let parts = []; // of attached files
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
  // Text has many types: a dialog of files then shows all.
  $("file").accept = types.includes("text/*") ? "" : types.join();
  $("attach").hidden = !types.length;
  parts = parts.filter((part) => fits(part, chosen()));
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

async function addFiles(added) {
  $("status").textContent = "";
  for (const file of [...added]) {
    try {
      parts.push(await partOf(file, chosen()));
    } catch (error) {
      $("status").textContent = error.message;
    }
  }
  showFiles();
}

function showFiles() {
  const entry = (part) => {
    const remove = button("×", () => {
      parts = parts.filter((one) => one !== part);
      showFiles();
      $("text").focus();
    }, { ariaLabel: `Remove ${part.name}` });
    return element("li", {}, `${part.name} `, remove);
  };
  $("files").replaceChildren(...parts.map(entry));
}

// --- chats -------------------------------------------------------------------------------------

/** Change the stored chats, and list them; without storage, the chats of this tab. */
async function stored(change) {
  try {
    await change();
  } catch (error) {
    $("chats-note").textContent = `Chats end with this tab: the browser does not store them (${error.message}).`;
  }
  listChats();
}

function listChats() {
  chats.sort((one, other) => other.updated - one.updated);
  const entry = (one) => {
    const title = one.title || "New chat";
    const open = button(title, () => openChat(one), { disabled: Boolean(running) });
    if (one === chat) open.ariaCurrent = "true";
    const remove = button("×", () => removeChat(one), { ariaLabel: `Delete ${title}`, disabled: Boolean(running) });
    return element("li", {}, open, remove);
  };
  $("chats").replaceChildren(...chats.filter((one) => has(one, $("search").value)).map(entry));
  for (const id of ["export", "clear"]) $(id).disabled = !chats.length || Boolean(running);
}

function openChat(one) {
  chat = one;
  showChat();
  if (narrow.matches) showSide(false);
  $("text").focus();
}

async function removeChat(one) {
  if (!(await confirmed(`Delete “${one.title}”?`, "Delete"))) return;
  chats = chats.filter((other) => other !== one);
  if (chat === one) openChat(newChat());
  stored(() => store.remove(one));
}

async function clearChats() {
  if (!(await confirmed(`Delete all ${chats.length} chats of this browser?`, "Delete all"))) return;
  chats = [];
  openChat(newChat());
  stored(() => store.clear());
}

async function importChats(file) {
  try {
    const added = imported(await file.text());
    chats.push(...added);
    await stored(() => Promise.all(added.map((one) => store.save(one))));
    $("status").textContent = `Imported ${added.length} chats.`;
  } catch (error) {
    $("status").textContent = `${file.name}: ${error.message}`;
  }
}

function saveChat() {
  if (!chats.includes(chat)) chats.push(chat);
  return stored(() => store.save(chat));
}

const narrow = matchMedia("(max-width: 60rem)");

function showSide(open) {
  $("side").hidden = !open;
  $("open-chats").ariaExpanded = String(open);
}

// --- messages ----------------------------------------------------------------------------------

const ACTIONS = {
  retry: (message) => generate(() => (chat.last = message.parent ?? chat.last)),
  edit(message, text) {
    const [files] = partsOf(message);
    if (!text.trim() && !files.length) return;
    generate(() => addMessage(chat, { role: "user", content: contentOf(files, text) }, pathOf(chat, message.parent).at(-1)));
  },
  version(message) {
    if (running) return;
    showVersion(chat, message);
    saveChat();
    showChat();
  },
};

function showChat() {
  const messages = pathOf(chat);
  $("log").replaceChildren();
  for (const message of messages) showMessage($("log"), chat, message, ACTIONS)();
  const hint = "Write below. Enter sends, Shift+Enter adds a line, Escape stops.";
  if (!messages.length) $("log").append(element("p", { className: "hint" }, hint));
  scrollDown();
  listChats();
}

function scrollDown() {
  $("log").scrollTop = $("log").scrollHeight;
}

/** Change the chat, and generate its next message. */
async function generate(change) {
  if (running) return;
  change();
  showChat();
  const messages = pathOf(chat);
  const message = { role: "assistant", content: "", model: $("model").value };
  const update = showMessage($("log"), chat, message, ACTIONS);
  update();
  scrollDown();
  let timer = 0;
  const changed = () => (timer ||= setTimeout(() => ((timer = 0), update()), PAUSE));
  running = new AbortController();
  showRunning();
  saveChat();
  const begun = performance.now();
  try {
    const request = { model: message.model, messages, options: options(), message, changed };
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
  running = null;
  if (message.content || message.tool_calls || message.reasoning_content) addMessage(chat, message, messages.at(-1));
  saveChat();
  update();
  showRunning();
  if (!chosen()?.capabilities) loadModels(); // it is loaded now
}

function showRunning() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("log").ariaBusy = String(Boolean(running));
  for (const id of ["new", "model", "import"]) $(id).disabled = Boolean(running);
  if (running) $("status").textContent = "The model writes …";
  listChats();
}

function send() {
  const [text, added] = [$("text").value, parts];
  if (running || !(text.trim() || added.length)) return;
  $("text").value = "";
  parts = [];
  showFiles();
  chat.title ||= (text.trim() || added[0].name).slice(0, TITLE);
  generate(() => addMessage(chat, { role: "user", content: contentOf(added, text) }, pathOf(chat).at(-1)));
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
document.ondragover = (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  document.body.classList.add("dropping");
};
document.ondragleave = (event) => {
  if (!event.relatedTarget) document.body.classList.remove("dropping");
};
document.ondrop = (event) => {
  document.body.classList.remove("dropping");
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  addFiles(event.dataTransfer.files);
};
$("stop").onclick = () => {
  running?.abort();
  $("text").focus();
};
$("attach").onclick = () => $("file").click();
$("file").onchange = async () => {
  await addFiles($("file").files);
  $("file").value = "";
};
$("model").onchange = showModel;
$("new").onclick = () => openChat(newChat());
$("open-chats").onclick = () => showSide($("side").hidden);
narrow.onchange = () => showSide(!narrow.matches);
$("search").oninput = listChats;
$("import").onclick = () => $("chats-file").click();
$("chats-file").onchange = async () => {
  await importChats($("chats-file").files[0]);
  $("chats-file").value = "";
};
$("export").onclick = () => download("chats.json", exported(chats));
$("clear").onclick = clearChats;
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
showChat();
showSide(!narrow.matches);
loadModels();
await stored(async () => {
  await store.open();
  chats.push(...(await store.all()));
});
