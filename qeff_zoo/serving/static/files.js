// Files beside a message, as parts of its content. Text, and the text of a PDF, goes to any model that continues text.

import { element } from "./elements.js";
import { typesOf } from "./requests.js";

const LARGEST_TEXT = 4_000_000; // bytes: no model has a context for more
const PDF = "application/pdf";

async function dataOf(file) {
  const reader = new FileReader();
  await new Promise((done) => {
    reader.onloadend = done;
    reader.readAsDataURL(file);
  });
  if (reader.error) throw new Error(`${file.name} cannot be read.`);
  return reader.result;
}

/** Return the text of a file; an error for one that is no text in UTF-8. */
async function textOf(file) {
  if (file.size > LARGEST_TEXT) throw new Error(`${file.name} is larger than ${LARGEST_TEXT / 1e6} MB of text.`);
  const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  if (text.includes("\0")) throw new TypeError();
  return text;
}

async function textOfPdf(file) {
  // Its worker is loaded as a module of the page: the page's policy forbids workers.
  globalThis.pdfjsWorker ??= await import("./vendor/pdf.worker.min.mjs");
  const { getDocument } = await import("./vendor/pdf.min.mjs");
  const document = await getDocument({ data: await file.arrayBuffer(), isEvalSupported: false }).promise;
  const pages = [];
  for (let number = 1; number <= document.numPages; number++) {
    const { items } = await (await document.getPage(number)).getTextContent();
    pages.push(items.map(({ str, hasEOL }) => str + (hasEOL ? "\n" : "")).join(""));
  }
  const text = pages.join("\n\n");
  if (!text.trim()) throw new Error(`${file.name} holds no text, perhaps images of pages.`);
  return text;
}

/** Return the part of a message for a file; an error where the model takes no such file. */
export async function partOf(file, model) {
  const { name, type } = file;
  const [kind, format] = type.split("/");
  const types = typesOf(model);
  const isMedia = ["image", "video", "audio"].includes(kind);
  if (isMedia && types.includes(`${kind}/*`)) {
    const url = await dataOf(file);
    if (kind === "image") return { type: "image_url", image_url: { url }, name };
    if (kind === "video") return { type: "video_url", video_url: { url }, name };
    return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format }, name };
  }
  const refusal = new Error(`This model takes no such file: ${name}`);
  if (isMedia || !types.includes("text/*")) throw refusal;
  try {
    return { type: "text", text: await (type === PDF ? textOfPdf : textOf)(file), name };
  } catch (error) {
    throw error instanceof TypeError ? refusal : new Error(error.message || `${name} cannot be read.`);
  }
}

const TYPES = { text: "text/*", image_url: "image/*", video_url: "video/*", input_audio: "audio/*" };

/** Return whether a model takes a part. */
export const fits = (part, model) => typesOf(model).includes(TYPES[part.type]);

/** Return the element that shows a part. */
export function showPart({ name, text, image_url: image, video_url: video, input_audio: audio }) {
  if (image) return element("img", { src: image.url, alt: name ?? "Attached image" });
  if (video) return element("video", { src: video.url, controls: true, ariaLabel: name ?? "Attached video" });
  if (audio) {
    const src = `data:audio/${audio.format};base64,${audio.data}`;
    return element("audio", { src, controls: true, ariaLabel: name ?? "Attached recording" });
  }
  return element("details", {}, element("summary", {}, name), element("pre", { tabIndex: 0 }, text));
}
