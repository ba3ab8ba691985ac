/* Markdown to elements. The parser gives a tree of positions in the source; this file walks it and makes
 * elements and text nodes only. HTML in the source is shown as what it is, text. Links lead to the web or
 * to mail and nowhere else; pictures are shown as links, since the page loads nothing from outside.
 * Text is written by a `write(from, to)` of the caller, who knows where each piece of the source is from. */

import { copyButton, el } from "./dom.js";
import { parser, GFM } from "./vendor/lezer-markdown.js";

const markdown = parser.configure(GFM);

const MARKS = new Set(["HeaderMark", "QuoteMark", "ListMark", "EmphasisMark", "CodeMark", "CodeInfo", "LinkMark",
  "LinkTitle", "LinkLabel", "StrikethroughMark", "TaskMarker", "TableDelimiter"]);
const INLINE = { Emphasis: "em", StrongEmphasis: "strong", Strikethrough: "s" };
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", mdash: "—",
  ndash: "–", hellip: "…", times: "×", larr: "←", rarr: "→", le: "≤", ge: "≥", ne: "≠", deg: "°" };
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const ALIGN = { ":-": "start", "-:": "end", "::": "center" };

/** The top-level blocks of a source, in order: nodes of the parser's tree. */
export const blocksOf = (source) => childrenOf(markdown.parse(source).topNode);

/** The element of one block. `write(from, to)` gives the nodes for that part of the source. */
export const renderBlock = (node, source, write) => new Walk(source, write).block(node);

function childrenOf(node) {
  const children = [];
  for (let child = node.firstChild; child; child = child.nextSibling) children.push(child);
  return children;
}

class Walk {
  constructor(source, write) {
    this.source = source;
    this.write = write;
  }

  slice(node) {
    return this.source.slice(node.from, node.to);
  }

  block(node) {
    const heading = /^(?:ATX|Setext)Heading(\d)$/.exec(node.name);
    if (heading) {
      // The page's own headings are h1 and h2, so those of an answer begin at h3.
      const level = Math.min(6, Number(heading[1]) + 2);
      return el(`h${level}`, { class: `h${heading[1]}` }, ...this.inline(node));
    }
    switch (node.name) {
      case "Blockquote":
        return el("blockquote", {}, ...this.blocks(node));
      case "BulletList":
        return el("ul", {}, ...this.items(node));
      case "OrderedList":
        return el("ol", { start: parseInt(this.slice(node), 10) }, ...this.items(node));
      case "FencedCode":
      case "CodeBlock":
        return this.code(node);
      case "Table":
        return this.table(node);
      case "HorizontalRule":
        return el("hr");
      case "HTMLBlock":
      case "CommentBlock":
      case "ProcessingInstructionBlock":
      case "LinkReference":
        return el("p", { class: "raw" }, ...this.write(node.from, node.to));
      default:
        return el("p", {}, ...this.inline(node));
    }
  }

  blocks(node) {
    return childrenOf(node).filter((child) => !MARKS.has(child.name)).map((child) => this.block(child));
  }

  items(list) {
    return childrenOf(list).filter((item) => item.name === "ListItem").map((item) => {
      const blocks = childrenOf(item).filter((child) => !MARKS.has(child.name));
      const tight = !/\n[ \t]*\n/.test(this.slice(item));
      return el("li", {}, ...blocks.flatMap((child) => {
        if (child.name === "Task") return this.task(child);
        return tight && child.name === "Paragraph" ? this.inline(child) : [this.block(child)];
      }));
    });
  }

  task(node) {
    const done = /^\[x\]/i.test(this.slice(node));
    return [el("span", { class: "box", role: "img", "aria-label": done ? "done" : "open" }, done ? "☑" : "☐"),
      " ", ...this.inline(node)];
  }

  code(node) {
    const info = childrenOf(node).find((child) => child.name === "CodeInfo");
    const parts = childrenOf(node).filter((child) => child.name === "CodeText");
    const text = parts.map((part) => this.slice(part)).join("");
    const language = info ? this.slice(info).split(/\s/, 1)[0] : "";
    return el("figure", { class: "code" },
      el("figcaption", {}, el("span", {}, language), copyButton(() => text, "Copy this code")),
      el("pre", { tabindex: "0" },
        el("code", {}, ...parts.flatMap((part) => this.write(part.from, part.to)))));
  }

  table(node) {
    const rows = childrenOf(node);
    const rule = rows.find((row) => row.name === "TableDelimiter");
    const aligns = rule ? this.slice(rule).split("|").map((cell) => cell.trim()).filter(Boolean)
      .map((cell) => ALIGN[`${cell[0]}${cell.at(-1)}`]) : [];
    const row = (line, tag) => el("tr", {}, ...this.cells(line).map((cell, column) =>
      el(tag, { class: aligns[column], scope: tag === "th" ? "col" : null },
        ...(cell ? this.inline(cell) : []))));
    return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, el("table", {},
      el("thead", {}, ...rows.filter((line) => line.name === "TableHeader").map((line) => row(line, "th"))),
      el("tbody", {}, ...rows.filter((line) => line.name === "TableRow").map((line) => row(line, "td")))));
  }

  /** The cells of a row; null where nothing stands between two bars. */
  cells(row) {
    const cells = [];
    let pending = false;
    for (const child of childrenOf(row)) {
      if (child.name === "TableCell") {
        cells.push(child);
        pending = false;
      } else if (child.name === "TableDelimiter") {
        if (pending) cells.push(null);
        pending = true;
        if (cells.length === 0 && child.from > row.from) cells.push(null);
      }
    }
    return cells;
  }

  /** What stands in a node, marks left out and inner nodes rendered. */
  inline(node, from = node.from, to = node.to) {
    const out = [];
    let at = from;
    for (const child of childrenOf(node)) {
      if (child.to <= from || child.from >= to) continue;
      out.push(...this.lines(at, child.from, out.length === 0));
      out.push(...this.inlineNode(child));
      at = child.to;
    }
    out.push(...this.lines(at, to, out.length === 0));
    return out;
  }

  /** Text with its line breaks kept: people and models mean them, whatever the standard says. */
  lines(from, to, first) {
    let text = this.source.slice(from, to);
    if (first) {
      const lead = text.length - text.trimStart().length; // after a mark such as "# " or "[x] "
      from += lead;
      text = text.slice(lead);
    }
    const out = [];
    let at = from;
    for (const match of text.matchAll(/[ \t]*\n[ \t]*/g)) {
      const start = from + match.index;
      if (start > at) out.push(...this.write(at, start));
      out.push(el("br"));
      at = start + match[0].length;
    }
    if (to > at) out.push(...this.write(at, to));
    return out;
  }

  inlineNode(node) {
    if (INLINE[node.name]) return [el(INLINE[node.name], {}, ...this.inline(node))];
    if (node.name === "QuoteMark") return [];
    if (MARKS.has(node.name)) return [];
    switch (node.name) {
      case "InlineCode":
        return [el("code", {}, ...this.write(node.firstChild.to, node.lastChild.from))];
      case "Escape":
        return this.write(node.from + 1, node.to);
      case "Entity":
        return this.entity(node);
      case "HardBreak":
        return [el("br")];
      case "HTMLTag":
        return /^<br\s*\/?>$/i.test(this.slice(node)) ? [el("br")] : this.write(node.from, node.to);
      case "Link":
      case "Image":
        return this.link(node);
      case "Autolink":
      case "URL":
        return this.autolink(node);
      default:
        return this.write(node.from, node.to);
    }
  }

  link(node) {
    const children = childrenOf(node);
    const url = children.find((child) => child.name === "URL");
    const [open, close] = children.filter((child) => child.name === "LinkMark");
    // Without an address it is a reference, or just brackets, as in `row[0]`: shown as written.
    if (!url || !open || !close) return this.write(node.from, node.to);
    const label = this.inline(node, open.to, close.from);
    if (label.length === 0) label.push(...this.write(url.from, url.to));
    return [anchor(this.slice(url).replace(/^<|>$/g, ""), label)];
  }

  autolink(node) {
    const url = node.name === "URL" ? node : childrenOf(node).find((child) => child.name === "URL");
    let target = this.slice(url);
    if (/^www\./i.test(target)) target = `https://${target}`;
    else if (/^[^:/\s]+@/.test(target)) target = `mailto:${target}`;
    return [anchor(target, this.write(url.from, url.to))];
  }

  entity(node) {
    const name = this.slice(node).slice(1, -1);
    const number = /^#(?:x([0-9a-f]{1,6})|(\d{1,7}))$/i.exec(name);
    const code = number ? parseInt(number[1] ?? number[2], number[1] ? 16 : 10) : 0;
    if (code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000)) return [String.fromCodePoint(code)];
    return Object.hasOwn(ENTITIES, name) ? [ENTITIES[name]] : this.write(node.from, node.to);
  }
}

function anchor(written, label) {
  const target = written.replace(/\\([!-/:-@[-`{-~])/g, "$1").replaceAll("&amp;", "&");
  if (!SAFE_LINK.test(target)) return el("span", { class: "no-link", title: target }, ...label);
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, ...label);
}
