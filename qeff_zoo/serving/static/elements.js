// Elements of the page.

/** Return an element with properties and children; strings become text nodes. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Return a button; its click calls a function. */
export function button(label, onclick, properties = {}) {
  return element("button", { type: "button", textContent: label, onclick, ...properties });
}

/** Copy a text. Pages from another host over http have no clipboard of their own: a selection is copied there. */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const { activeElement } = document;
  const area = element("textarea", { value: text, className: "offscreen", readOnly: true });
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  activeElement?.focus();
  if (!copied) throw new Error("The browser refuses to copy.");
}

const SHOWN = 1500; // milliseconds for which a button confirms

/** Return a button that copies what a function returns, and confirms it. */
export function copyButton(text) {
  const made = button("Copy", async () => {
    try {
      await copy(text());
      made.textContent = "Copied";
    } catch {
      made.textContent = "Not copied";
    }
    setTimeout(() => (made.textContent = "Copy"), SHOWN);
  }, { ariaLive: "polite" });
  return made;
}

/** Ask a question in a dialog; returns whether it is confirmed. */
export function confirmed(question, action) {
  const dialog = element("dialog", { ariaLabel: question });
  const end = (value) => () => dialog.close(value);
  dialog.append(element("p", {}, question), element("menu", {}, button("Cancel", end("")), button(action, end("yes"))));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => {
    dialog.onclose = () => {
      dialog.remove();
      done(dialog.returnValue === "yes");
    };
  });
}

/** Save a text as a file of the user's machine. */
export function download(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}
