// Chats of this browser, in its IndexedDB, and the versions of their messages. A chat is { id, title, updated, messages, last }:
// each message names the one before it by `parent`, so that an edited message and a repeated answer stand beside the old ones.

const VERSION = 1;

/** Return a new id; `crypto.randomUUID` is missing on pages over http. */
const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

export const newChat = () => ({ id: newId(), title: "", updated: Date.now(), messages: [], last: null });

/** Add a message to a chat after another one, or at its beginning; it is the last of the shown ones. */
export function addMessage(chat, message, parent) {
  Object.assign(message, { id: newId(), parent: parent?.id ?? null });
  chat.messages.push(message);
  chat.last = message.id;
  chat.updated = Date.now();
}

const messageOf = (chat, id) => chat.messages.find((message) => message.id === id);

/** Return the messages that lead to one, itself included; without one, those that are shown. */
export function pathOf(chat, id = chat.last) {
  const path = [];
  for (let message = messageOf(chat, id); message; message = messageOf(chat, message.parent)) path.unshift(message);
  return path;
}

/** Return all versions of a message. */
export const versionsOf = (chat, { parent }) => chat.messages.filter((message) => message.parent === parent);

/** Show another version of a message, with the newest messages after it. */
export function showVersion(chat, message) {
  let newest = message;
  for (let next = newest; next; next = chat.messages.findLast(({ parent }) => parent === newest.id)) newest = next;
  chat.last = newest.id;
}

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Chats of this browser. */
export class Store {
  #database = null;

  /** Open the database; without one, chats end with the tab. */
  async open() {
    const request = indexedDB.open("qeff-zoo", VERSION);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    this.#database = await promised(request);
  }

  #chats(mode) {
    return this.#database.transaction("chats", mode).objectStore("chats");
  }

  /** Return all chats, the newest first. */
  async all() {
    if (!this.#database) return [];
    return (await promised(this.#chats("readonly").getAll())).sort((one, other) => other.updated - one.updated);
  }

  async save(chat) {
    if (this.#database) await promised(this.#chats("readwrite").put(chat));
  }

  async remove({ id }) {
    if (this.#database) await promised(this.#chats("readwrite").delete(id));
  }

  async clear() {
    if (this.#database) await promised(this.#chats("readwrite").clear());
  }
}

/** Return chats as the text of a file. */
export const exported = (chats) => JSON.stringify({ "qeff-zoo chats": VERSION, chats });

const isText = (value) => typeof value === "string";
const isMessage = ({ id, parent, role, content }) =>
  isText(id) && (parent === null || isText(parent)) && ["user", "assistant"].includes(role) && (isText(content) || Array.isArray(content));

/** Return the chats of such a text, with new ids: nothing of this browser is replaced. */
export function imported(text) {
  const found = JSON.parse(text);
  if (found["qeff-zoo chats"] !== VERSION || !Array.isArray(found.chats)) throw new Error("The file holds no chats of this page.");
  return found.chats.map(({ title, updated, messages, last }) => {
    if (!Array.isArray(messages) || !messages.every(isMessage)) throw new Error("The file holds a chat that is damaged.");
    return { ...newChat(), title: String(title), updated: Number(updated) || Date.now(), messages, last };
  });
}

/** Return whether a text occurs in a chat. */
export function has(chat, text) {
  const wanted = text.trim().toLowerCase();
  const textsOf = ({ content }) => (isText(content) ? [content] : content.map((part) => part.text ?? ""));
  return [chat.title, ...chat.messages.flatMap(textsOf)].some((one) => one.toLowerCase().includes(wanted));
}
