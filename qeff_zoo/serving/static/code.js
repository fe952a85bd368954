// Code in colors with a button that copies it, and mathematics as MathML: nodes alone, never HTML.

import { copyButton, element } from "./elements.js";

/* global Prism, temml -- scripts of vendor/ */
const LONGEST_CODE = 20_000; // characters that are colored: grammars take long for some texts
const LONGEST_FORMULA = 2000;
const EXPANSIONS = 200; // of macros in a formula

const grammars = () => globalThis.Prism?.languages ?? {};

/** Return the nodes of Prism's tokens: text, and spans with the class of their type. */
function colored(tokens) {
  return [tokens].flat().map((token) =>
    typeof token === "string" ? token : element("span", { className: `token ${token.type}` }, ...colored(token.content)),
  );
}

/** Return a block of code with its language, if that is known, and a button that copies it. */
export function codeBlock(text, language) {
  const name = language.toLowerCase();
  const isKnown = Object.hasOwn(grammars(), name) && typeof grammars()[name] === "object";
  const nodes = isKnown && text.length <= LONGEST_CODE ? colored(Prism.tokenize(text, grammars()[name])) : [text];
  const bar = element("div", { className: "bar" }, isKnown ? name : "", copyButton(() => text));
  return element("div", { className: "code" }, bar, element("pre", { tabIndex: 0 }, element("code", {}, ...nodes)));
}

/** Return a formula in TeX's language; its source where it has faults. */
export function formula(text, displayMode) {
  const made = displayMode ? element("div", { className: "formula", tabIndex: 0 }) : element("span");
  try {
    if (text.length > LONGEST_FORMULA) throw new RangeError("too long");
    temml.render(text, made, { displayMode, throwOnError: true, trust: false, maxExpand: EXPANSIONS, maxSize: [20, 100] });
  } catch {
    made.replaceChildren(element("code", {}, text));
  }
  return made;
}
