/* The numbers of an answer: one quiet line while it comes and after, and on demand its legend and a chart
 * of acceptance by depth, one line for each drafter. Acceptance at a depth is accepted nodes over those
 * that were judged, accepted and rejected; a node whose parent was wrong was never judged. */

import { el, svg } from "./dom.js";
import { hueOf } from "./origins.js";

const WIDTH = 300;
const HEIGHT = 132;
const LEFT = 42;
const TOP = 10;
const BOTTOM = 24;
const LETTER = 6.5; // pixels of an average letter of a name
const MIN_GAP = 13; // between two names, in pixels

const fixed = (number, digits) => (Number.isFinite(number) ? number.toFixed(digits) : null);
const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

/** The line: tokens, tokens/s, tokens per pass, speed-up; what is not known is left out. */
export function figureLine(figures) {
  const { tokens, tokens_per_second: rate, tokens_per_pass: perPass, speedup } = figures;
  const parts = [];
  if (tokens > 0) parts.push(["tokens", count(tokens, "token")]);
  if (rate > 0) parts.push(["rate", `${fixed(rate, rate < 10 ? 2 : 1)} tokens/s`]);
  if (perPass > 0) parts.push(["per-pass", `${fixed(perPass, 2)} tokens per pass`]);
  if (speedup > 0) parts.push(["speedup", `${fixed(speedup, 2)}× plain`]);
  // With spaces between, so that a narrow page can break the line there.
  return parts.flatMap(([name, text]) => [el("span", { class: name }, text), " "]);
}

/** Legend and chart of an answer; null while there is nothing to tell. */
export function draftPanel(origins, usage) {
  const counts = origins.counts();
  const drafts = Object.entries(usage?.drafts ?? {}).filter(([, depths]) => depths.some(judged));
  const names = [...new Set([...counts.keys(), ...drafts.map(([name]) => name)])];
  const legend = el("ul", { class: "legend", "aria-label": "Where tokens came from" },
    el("li", {}, el("span", { class: "swatch" }), "own choice",
      usage ? el("span", { class: "quiet" }, ` ${count(Math.max(0, usage.tokens - origins.drafted), "token")}`) : null),
    ...names.map((name) => el("li", {}, el("span", { class: `swatch by-${hueOf(name)}` }), name,
      el("span", { class: "quiet" }, ` ${count(counts.get(name) ?? 0, "token")}`))));
  return el("div", { class: "drafts" }, legend,
    drafts.length > 0 ? chart(drafts) : null,
    usage ? el("p", { class: "details quiet" }, ...details(usage)) : null);
}

function details(usage) {
  const parts = [];
  if (usage.prefill_seconds >= 0) parts.push(`prompt read in ${fixed(usage.prefill_seconds, 2)} s`);
  if (usage.reused_tokens > 0) parts.push(`${count(usage.reused_tokens, "token")} of it known before`);
  if (usage.seed !== undefined && usage.seed !== null) parts.push(`seed ${usage.seed}`);
  return [parts.join(" · ")];
}

const judged = (depth) => depth.accepted + depth.rejected > 0;
// A point is as large as what it rests on: 100 % of one token should not look like 100 % of fifty.
const radius = ({ accepted, rejected }) => Math.min(4, 1.5 + Math.log10(accepted + rejected) * 1.5).toFixed(1);
const rate = (depth) => depth.accepted / (depth.accepted + depth.rejected);
const short = (name) => (name.length > 12 ? `${name.slice(0, 11)}…` : name);
const percent = (share) => `${Math.round(100 * share)} %`;

function chart(drafts) {
  const deepest = Math.max(2, ...drafts.map(([, depths]) => depths.findLastIndex(judged) + 1));
  const right = WIDTH - 12 - LETTER * Math.max(...drafts.map(([name]) => short(name).length));
  const x = (depth) => LEFT + ((right - LEFT) * (depth - 1)) / (deepest - 1);
  const y = (share) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - share);
  const lines = drafts.map(([name, depths]) => ({
    name,
    points: depths.map((depth, index) => ({ ...depth, at: index + 1 })).filter(judged),
  }));
  const say = lines.map(({ name, points }) =>
    `${name}: ${points.map((point) => `${percent(rate(point))} at depth ${point.at}`).join(", ")}`).join(". ");
  return el("figure", { class: "chart" },
    el("figcaption", {}, "Acceptance by depth"),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Acceptance by depth. ${say}.` },
      ...grid(x, y, right, deepest), ...lines.map((line) => curve(line, x, y)), ...labels(lines, x, y)));
}

function grid(x, y, right, deepest) {
  const step = Math.ceil(deepest / 8);
  const depths = Array.from({ length: deepest }, (_, index) => index + 1).filter((depth) => (depth - 1) % step === 0);
  return [
    ...[0, 0.5, 1].flatMap((share) => [
      svg("line", { class: "rule", x1: LEFT, x2: right, y1: y(share), y2: y(share) }),
      svg("text", { class: "tick end", x: LEFT - 8, y: y(share) + 3.5 }, percent(share)),
    ]),
    ...depths.map((depth) => svg("text", { class: "tick middle", x: x(depth), y: HEIGHT - 6 }, String(depth))),
  ];
}

function curve({ name, points }, x, y) {
  const path = points.map((point) => `${x(point.at).toFixed(1)},${y(rate(point)).toFixed(1)}`).join(" ");
  return svg("g", { class: `curve by-${hueOf(name)}` },
    svg("polyline", { points: path }),
    ...points.map((point) => svg("circle", { cx: x(point.at), cy: y(rate(point)), r: radius(point) },
      svg("title", {}, `${name}, depth ${point.at}: ${point.accepted} of ${point.accepted + point.rejected} accepted`))));
}

/** The names at the ends of their lines, pushed apart where they would meet. */
function labels(lines, x, y) {
  const lowest = y(0) - 6; // clear of the depths below
  const places = lines
    .map(({ name, points }) => ({ name, x: x(points.at(-1).at), y: Math.min(lowest, y(rate(points.at(-1)))) }))
    .sort((a, b) => a.y - b.y);
  places.forEach((place, index) => {
    if (index > 0) place.y = Math.max(place.y, places[index - 1].y + MIN_GAP);
  });
  return places.map((place) => svg("text", { class: `label by-${hueOf(place.name)}`, x: place.x + 8, y: place.y + 4 },
    short(place.name)));
}
