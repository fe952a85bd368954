// Markdown as DOM nodes. Text becomes text nodes alone, so that no output of a model is ever HTML.

import { codeBlock, formula } from "./code.js";
import { element } from "./elements.js";

const INLINE = [
  [/^(`+)([^`]|[^`][^]*?[^`])\1(?!`)/, (match) => element("code", {}, match[2])],
  [/^\$\$(?=\S)([^$]+?)\$\$/, (match) => formula(match[1], false)],
  [/^\$(?=[^\s$])([^$\n]*[^\s$\\])\$(?!\d)/, (match) => formula(match[1], false)],
  [/^\\\(([^]+?)\\\)/, (match) => formula(match[1], false)],
  [/^\*\*(?=\S)([^]*?\S)\*\*/, (match) => element("strong", {}, ...inline(match[1]))],
  [/^\*(?=[^\s*])([^*]+)\*/, (match) => element("em", {}, ...inline(match[1]))],
  [/^~~(?=\S)([^~]+)~~/, (match) => element("del", {}, ...inline(match[1]))],
  [/^\[([^\]\n]+)\]\((https?:\/\/[^\s()<>]+)\)/, (match) => link(match[2], ...inline(match[1]))],
  [/^https?:\/\/[^\s()<>`"']+[^\s()<>`"'.,;:!?]/, (match) => link(match[0], match[0])],
];
const MARKS = /[`*~[$]|\\\(|https?:/;
const LONGEST = 1000; // characters of a marked span: patterns take time quadratic in it

function link(href, ...children) {
  return element("a", { href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

/** Return the nodes of a line: code, strong, emphasis, links to web pages, and text. */
function inline(text) {
  const nodes = [];
  let plain = 0;
  const marks = new RegExp(MARKS, "g");
  for (let mark = marks.exec(text); mark; mark = marks.exec(text)) {
    const rest = text.slice(mark.index, mark.index + LONGEST);
    for (const [form, make] of INLINE) {
      const match = form.exec(rest);
      if (!match) continue;
      nodes.push(text.slice(plain, mark.index), make(match));
      marks.lastIndex = plain = mark.index + match[0].length;
      break;
    }
  }
  return [...nodes, text.slice(plain)];
}

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const COLUMNS = /^[\s|:-]+$/;
const TASK = /^\[([ xX])\]\s+/;
/** Marks around a formula that has lines of its own. */
const FORMULAS = { "$$": "$$", "\\[": "\\]" };
const FORMULA_LINES = 200; // at most, since the end of each that begins is searched

/** Return the nodes of a text in Markdown. */
export const markdown = (text) => blocks(text.split("\n"), 0).map(({ make }) => make());

/** Show a text in Markdown that grows: blocks that are as before stay, with what is selected and scrolled in them. */
export function renderMarkdown(container, text) {
  const before = container.sources ?? [];
  const found = blocks(text.split("\n"), 0);
  container.sources = found.map(({ source }) => source);
  let same = 0;
  while (same < found.length && found[same].source === before[same]) same++;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...found.slice(same).map(({ make }) => make()));
}

/** Return the blocks of lines: `source`, and `make`, which returns the node. */
function blocks(lines, depth) {
  const found = [];
  let paragraph = [];
  const end = () => {
    const source = paragraph.join("\n");
    if (paragraph.length) found.push({ source, make: () => element("p", { dir: "auto" }, ...inline(source)) });
    paragraph = [];
  };
  for (let at = 0, make, next; at < lines.length; at = next) {
    [make, next] = (depth < 8 && block(lines, at, depth)) || [null, at + 1];
    if (make || !lines[at].trim()) end();
    else paragraph.push(lines[at]);
    if (make) found.push({ source: lines.slice(at, next).join("\n"), make });
  }
  end();
  return found;
}

const nodesOf = (lines, depth) => blocks(lines, depth).map(({ make }) => make());

/** Return what makes the block that begins at a line, and the number of the line after it; null for a paragraph. */
function block(lines, at, depth) {
  const line = lines[at];
  const until = (ends, from = at + 1, most = lines.length) => {
    while (from < Math.min(most, lines.length) && !ends(lines[from])) from++;
    return from;
  };
  const fence = FENCE.exec(line)?.[1];
  if (fence) {
    const next = until((one) => one.trim().startsWith(fence));
    const language = line.trim().replace(/^[`~]+/, "").trim();
    return [() => codeBlock(lines.slice(at + 1, next).join("\n"), language), next + 1];
  }
  const [, opening, begun] = /^\s*(\$\$|\\\[)(.*)$/.exec(line) ?? [];
  if (opening) {
    const closing = FORMULAS[opening];
    const isShort = begun.trimEnd().endsWith(closing) && begun.trim() !== closing;
    const last = isShort ? at : until((one) => one.includes(closing), at + 1, at + FORMULA_LINES);
    const inner = isShort ? begun : [begun, ...lines.slice(at + 1, last + 1)].join("\n");
    const [text, after] = inner.split(closing);
    if (!after?.trim()) return [() => formula(text.trim(), true), last + 1];
  }
  const heading = HEADING.exec(line);
  if (heading) {
    const tag = `h${Math.min(6, heading[1].length + 2)}`;
    return [() => element(tag, { dir: "auto" }, ...inline(heading[2].trim())), at + 1];
  }
  if (RULE.test(line)) return [() => element("hr"), at + 1];
  if (QUOTE.test(line)) {
    const next = until((one) => !QUOTE.test(one));
    const inner = lines.slice(at, next).map((one) => one.replace(QUOTE, ""));
    return [() => element("blockquote", { dir: "auto" }, ...nodesOf(inner, depth + 1)), next];
  }
  const columns = lines[at + 1] ?? "";
  if (line.includes("|") && columns.includes("-") && COLUMNS.test(columns)) {
    const next = until((one) => !one.includes("|"), at + 2);
    const sides = cells(columns).map(side);
    const cell = (text, tag, at) => element(tag, { dir: "auto", className: sides[at] ?? "" }, ...inline(text));
    const row = (one, tag) => element("tr", {}, ...cells(one).map((text, at) => cell(text, tag, at)));
    const body = () => lines.slice(at + 2, next).map((one) => row(one, "td"));
    return [() => element("table", { tabIndex: 0 }, row(line, "th"), ...body()), next];
  }
  return ITEM.test(line) ? list(lines, at, depth) : null;
}

/** Return the cells of a row; a bar after a backslash is text. */
function cells(line) {
  const row = line.trim().replace(/^\||(?<!\\)\|$/g, "");
  return row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** Return the side at which a column is aligned by the colons of its mark; an empty text for none. */
function side(mark) {
  if (!mark.endsWith(":")) return mark.startsWith(":") ? "left" : "";
  return mark.startsWith(":") ? "center" : "right";
}

/** Return what makes a list; lines that are indented more than its marks belong to the item before them. */
function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const items = [];
  let next = at;
  while (next < lines.length) {
    const match = ITEM.exec(lines[next]);
    if (!match || match[1].length > indent.length + 1 || /\d/.test(match[2]) !== ordered) break;
    const inner = [match[3]];
    const inside = indent.length + 2;
    for (next++; next < lines.length; next++) {
      const line = lines[next];
      const blank = !line.trim() && /^\s{2,}\S/.test(lines[next + 1] ?? "");
      if (!blank && line.search(/\S/) < inside) break;
      inner.push(line.slice(inside));
    }
    items.push(inner);
    while (!lines[next]?.trim() && ITEM.test(lines[next + 1] ?? "") && next < lines.length) next++;
  }
  const start = ordered ? { start: parseInt(mark, 10) } : {};
  return [() => element(ordered ? "ol" : "ul", start, ...items.map((inner) => item(inner, depth))), next];
}

function item([first, ...rest], depth) {
  const task = TASK.exec(first);
  const box = element("input", { type: "checkbox", disabled: true, checked: task && task[1] !== " ", ariaLabel: "Task" });
  const text = inline(task ? first.slice(task[0].length) : first);
  return element("li", { dir: "auto", className: task ? "task" : "" }, ...(task ? [box] : []), ...text, ...nodesOf(rest, depth + 1));
}
