/* Where each token of an answer came from: the model's own choice, or the drafters that had guessed it.
 * Keeps pieces as [length, names] over the answer's text (UTF-16 units, names joined by "+", "" for the
 * model's own), and writes text as nodes that carry their origin. Knows nothing of Markdown. */

import { el } from "./dom.js";

const HUES = ["ngram", "text", "model", "head"]; // classes by-1 to by-4; others take by-5 and by-6 in turn
const others = [];

/** The number of a drafter's colour, 1 to 6; the same for a name as long as the page is open. */
export function hueOf(name) {
  const known = HUES.indexOf(name.split(":", 1)[0]);
  if (known >= 0) return known + 1;
  if (!others.includes(name)) others.push(name);
  return HUES.length + 1 + (others.indexOf(name) % 2);
}

export class Origins {
  /** `pieces` is what `pack` once gave. */
  constructor(pieces = []) {
    this.starts = [];
    this.names = [];
    this.end = 0;
    for (const [length, names] of pieces) this.#push(length, names);
  }

  #push(length, names) {
    if (length === 0) return;
    this.starts.push(this.end);
    this.names.push(names);
    this.end += length;
  }

  /** Take over the pieces of one chunk, whose text goes from `from` to `to` in the answer. */
  add(spans, from, to) {
    const total = spans.reduce((sum, span) => sum + span.text.length, 0);
    // A server may hold text back and give it later; where a chunk is whole it sets the place again.
    if (total === to - from && this.end < from) this.#push(from - this.end, "");
    for (const span of spans) {
      this.#push(Math.min(span.text.length, Math.max(0, to - this.end)), span.drafted_by.join("+"));
    }
  }

  /** For storage: [[length, names], ...], neighbouring own choices as one. */
  pack() {
    const packed = [];
    this.starts.forEach((start, index) => {
      const length = (this.starts[index + 1] ?? this.end) - start;
      const last = packed.at(-1);
      if (last && this.names[index] === "" && last[1] === "") last[0] += length;
      else packed.push([length, this.names[index]]);
    });
    return packed;
  }

  /** Drafter name -> tokens tinted for it; one that several had guessed counts for the first. */
  counts() {
    const counts = new Map();
    for (const names of this.names.filter(Boolean)) {
      const name = names.split("+", 1)[0];
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return counts;
  }

  /** How many tokens some drafter had guessed. */
  get drafted() {
    return this.names.filter(Boolean).length;
  }

  /** The nodes of `source` from `from` to `to`: drafted tokens as elements, all else as text. */
  write(source, from, to) {
    const nodes = [];
    let index = this.#find(from);
    for (let at = from; at < to; index += 1) {
      const stop = Math.min(to, this.starts[index + 1] ?? (at < this.end ? this.end : to));
      const text = source.slice(at, stop);
      const names = at < this.end ? (this.names[index] ?? "") : "";
      if (names === "") nodes.push(text);
      else nodes.push(el("span", { class: `by by-${hueOf(names.split("+", 1)[0])}`, title: `drafted by ${names.replaceAll("+", ", ")}` }, text));
      at = Math.max(stop, at + 1);
    }
    return nodes;
  }

  #find(position) {
    let low = 0;
    let high = this.starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= position) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
  }
}
