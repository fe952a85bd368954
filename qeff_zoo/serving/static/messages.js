// Messages in the log.

import { versionsOf } from "./chats.js";
import { button, copyButton, element } from "./elements.js";
import { showPart } from "./files.js";
import { renderMarkdown } from "./markdown.js";

const NEAR = 60; // pixels above the end of the log at which it follows what is written

/** Return the parts of a message's files, and the text that the user wrote. */
export function partsOf({ content }) {
  if (typeof content === "string") return [[], content];
  const isFile = ({ type, name }) => type !== "text" || name;
  return [content.filter(isFile), content.filter((part) => !isFile(part)).map(({ text }) => text).join("")];
}

/** Return the content of a message. */
export function contentOf(parts, text) {
  return parts.length ? [...parts, ...(text.trim() ? [{ type: "text", text }] : [])] : text;
}

/**
 * Add a message to a log; returns a function that shows its present content.
 * `actions`: `retry(message)`, `edit(message, text)` and `version(message)`, called by its buttons.
 */
export function showMessage(log, chat, message, actions) {
  const name = message.model ?? "You";
  const areas = ["media", "text", "calls", "error", "actions"].map((className) => element("div", { className }));
  const [media, text, calls, error, buttons] = areas;
  const reasoning = element("p", { dir: "auto" });
  const thoughts = element("details", { open: true }, element("summary", {}, "Reasoning"), reasoning);
  text.dir = "auto";
  const article = element("article", { className: message.role, ariaLabel: name }, element("h2", {}, name), thoughts, ...areas);
  log.append(article);
  const [files, written] = partsOf(message);
  media.append(...files.map(showPart));
  const isAnswer = message.role === "assistant";
  return () => {
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR;
    reasoning.textContent = message.reasoning_content ?? "";
    thoughts.hidden = !message.reasoning_content;
    if (message.ended && !message.closed) thoughts.open = !(message.closed = true);
    if (isAnswer) renderMarkdown(text, message.content);
    else text.replaceChildren(written);
    calls.replaceChildren(...(message.tool_calls ?? []).map(showCall));
    error.textContent = message.error ?? "";
    if (message.ended || !isAnswer) buttons.replaceChildren(...showActions(chat, message, actions, () => editor(article, written, message, actions)));
    if (follows) log.scrollTop = log.scrollHeight;
  };
}

function showCall({ function: { name, arguments: given } }) {
  return element("details", { open: true }, element("summary", {}, `Call of ${name}`), element("pre", { tabIndex: 0 }, given));
}

function showActions(chat, message, { retry, version }, edit) {
  const copied = copyButton(() => (message.role === "user" ? partsOf(message)[1] : message.content));
  const change = message.role === "user" ? button("Edit", edit) : button("Retry", () => retry(message));
  const versions = message.id ? versionsOf(chat, message) : [];
  const at = versions.indexOf(message);
  const step = (label, sign, to) => button(sign, () => version(versions[to]), { ariaLabel: label, disabled: !versions[to] });
  const steps = [step("Version before", "‹", at - 1), `${at + 1} / ${versions.length}`, step("Version after", "›", at + 1)];
  return [copied, change, ...(versions.length > 1 ? steps : []), noteOf(message)];
}

function noteOf({ usage, seconds, ended }) {
  const cut = { length: "cut at the limit of tokens", stopped: "stopped" }[ended];
  const speed = usage && seconds ? `${usage.completion_tokens} tokens, ${(usage.completion_tokens / seconds).toFixed(0)} a second` : "";
  return [speed, cut].filter(Boolean).join(", ");
}

/** Replace the text of a user's message by a field; what is sent becomes another version of it. */
function editor(article, written, message, { edit }) {
  const [text, buttons] = [".text", ".actions"].map((name) => article.querySelector(name));
  const shown = [...buttons.childNodes];
  const field = element("textarea", { value: written, ariaLabel: "Edited message", rows: Math.min(12, written.split("\n").length + 1) });
  const end = () => {
    text.replaceChildren(written);
    buttons.replaceChildren(...shown);
  };
  const send = () => edit(message, field.value);
  field.onkeydown = (event) => {
    if (event.key === "Escape") end();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  text.replaceChildren(field);
  buttons.replaceChildren(button("Send", send), button("Cancel", end));
  field.focus();
}
