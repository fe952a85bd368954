// Markdown as DOM nodes. Text becomes text nodes alone, so that no output of a model is ever HTML.

/** Return an element with properties and children; strings become text nodes. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const INLINE = [
  [/^(`+)([^`]|[^`][^]*?[^`])\1(?!`)/, (match) => element("code", {}, match[2])],
  [/^\*\*(?=\S)([^]*?\S)\*\*/, (match) => element("strong", {}, ...inline(match[1]))],
  [/^\*(?=[^\s*])([^*]+)\*/, (match) => element("em", {}, ...inline(match[1]))],
  [/^~~(?=\S)([^~]+)~~/, (match) => element("del", {}, ...inline(match[1]))],
  [/^\[([^\]\n]+)\]\((https?:\/\/[^\s()<>]+)\)/, (match) => link(match[2], ...inline(match[1]))],
  [/^https?:\/\/[^\s()<>`"']+[^\s()<>`"'.,;:!?]/, (match) => link(match[0], match[0])],
];
const MARKS = /[`*~[]|https?:/;
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
const COLUMNS = /^[\s|:-]*-[\s|:-]*$/;

/** Return the nodes of a text in Markdown. */
export const markdown = (text) => blocks(text.split("\n"), 0);

function blocks(lines, depth) {
  const nodes = [];
  let paragraph = [];
  const end = () => {
    if (paragraph.length) nodes.push(element("p", {}, ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0, node, next; at < lines.length; at = next) {
    [node, next] = (depth < 8 && block(lines, at, depth)) || [null, at + 1];
    if (node || !lines[at].trim()) end();
    else paragraph.push(lines[at]);
    if (node) nodes.push(node);
  }
  end();
  return nodes;
}

/** Return the block that begins at a line, and the number of the line after it; null for a paragraph. */
function block(lines, at, depth) {
  const line = lines[at];
  const until = (ends, from = at + 1) => {
    while (from < lines.length && !ends(lines[from])) from++;
    return from;
  };
  const fence = FENCE.exec(line)?.[1];
  if (fence) {
    const next = until((one) => one.trim().startsWith(fence));
    const code = element("code", {}, lines.slice(at + 1, next).join("\n"));
    return [element("pre", { tabIndex: 0 }, code), next + 1];
  }
  const heading = HEADING.exec(line);
  if (heading) return [element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2].trim())), at + 1];
  if (RULE.test(line)) return [element("hr"), at + 1];
  if (QUOTE.test(line)) {
    const next = until((one) => !QUOTE.test(one));
    const inner = lines.slice(at, next).map((one) => one.replace(QUOTE, ""));
    return [element("blockquote", {}, ...blocks(inner, depth + 1)), next];
  }
  if (line.includes("|") && COLUMNS.test(lines[at + 1] ?? "")) {
    const next = until((one) => !one.includes("|"), at + 2);
    const row = (one, tag) => element("tr", {}, ...cells(one).map((cell) => element(tag, {}, ...inline(cell))));
    const body = lines.slice(at + 2, next).map((one) => row(one, "td"));
    return [element("table", { tabIndex: 0 }, row(line, "th"), ...body), next];
  }
  return ITEM.test(line) ? list(lines, at, depth) : null;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

/** Return a list; lines that are indented more than its marks belong to the item before them. */
function list(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const made = element(ordered ? "ol" : "ul", ordered ? { start: parseInt(mark, 10) } : {});
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
    const content = inner.length > 1 ? [...inline(inner[0]), ...blocks(inner.slice(1), depth + 1)] : inline(inner[0]);
    made.append(element("li", {}, ...content));
    while (!lines[next]?.trim() && ITEM.test(lines[next + 1] ?? "") && next < lines.length) next++;
  }
  return [made, next];
}
