/* The settings sheet: system prompt, sampling, drafting, key. Reads and checks its fields and says what
 * they add to a request; an empty field adds nothing, so that the server's own defaults hold. All of it is
 * kept for the next visit but the key, which lives as long as the tab. */

import { byId } from "./dom.js";
import { keep, recall } from "./store.js";

const MAX_SEED = 2n ** 64n - 1n;
// name -> [what it is called, lowest, highest, whole numbers only]
const NUMBERS = {
  temperature: ["Temperature", 0, 100, false],
  top_p: ["Top-p", 0, 1, false],
  top_k: ["Top-k", 0, 1000000, true],
  min_p: ["Min-p", 0, 1, false],
  max_tokens: ["Most tokens", 1, 1000000, true],
};
const KEPT = [...Object.keys(NUMBERS), "seed", "system", "draft"];

const form = byId("settings-form");
const field = (name) => form.elements[name];

/** The value of a field, or a sentence on what is wrong with it as `wrong`. */
function numberOf(name) {
  const text = field(name).value.trim().replace(",", ".");
  if (text === "") return {};
  const [called, low, high, whole] = NUMBERS[name];
  const value = Number(text);
  if (!Number.isFinite(value) || value < low || value > high || (whole && !Number.isInteger(value))) {
    return { wrong: `${called} is “${text}”; allowed is a ${whole ? "whole " : ""}number from ${low} to ${high.toLocaleString("en")}.` };
  }
  return { value };
}

function seedOf() {
  const text = field("seed").value.trim();
  if (text === "") return {};
  if (!/^\d{1,20}$/.test(text) || BigInt(text) > MAX_SEED) {
    return { wrong: `Seed is “${text}”; allowed is a whole number from 0 to 2⁶⁴ − 1.` };
  }
  return { value: BigInt(text) };
}

/** What the settings add to a request: {fields, wrong}; `wrong` is a sentence or null. */
export function requestFields() {
  const fields = { draft: field("draft").value === "none" ? "none" : "auto" };
  for (const name of [...Object.keys(NUMBERS), "seed"]) {
    const { value, wrong } = name === "seed" ? seedOf() : numberOf(name);
    if (wrong) return { fields: {}, wrong };
    if (value !== undefined) fields[name] = value;
  }
  return { fields, wrong: null };
}

export const systemPrompt = () => field("system").value.trim();
export const apiKey = () => field("key").value.trim();

export function setApiKey(key) {
  field("key").value = key;
  keep("key", key, false);
}

export const openSettings = () => byId("settings").showModal();

function showWrong() {
  const { wrong } = requestFields();
  const line = byId("settings-error");
  line.textContent = wrong ?? "";
  line.hidden = !wrong;
  for (const name of [...Object.keys(NUMBERS), "seed"]) {
    const bad = Boolean((name === "seed" ? seedOf() : numberOf(name)).wrong);
    field(name).setAttribute("aria-invalid", String(bad));
  }
}

function store() {
  keep("settings", JSON.stringify(Object.fromEntries(KEPT.map((name) => [name, field(name).value]))));
  keep("key", apiKey(), false);
  showWrong();
}

function restore() {
  let kept = {};
  try {
    kept = JSON.parse(recall("settings") ?? "{}") ?? {};
  } catch {
    // nonsense in the storage: begin with the defaults
  }
  for (const name of KEPT) field(name).value = typeof kept[name] === "string" ? kept[name] : "";
  if (field("draft").value !== "none") field("draft").value = "auto";
  field("key").value = recall("key", false) ?? "";
}

/** Fill the sheet and keep what is changed; `keyChanged` is called when the key is another one. */
export function startSettings(keyChanged) {
  restore();
  showWrong();
  form.addEventListener("input", store);
  field("key").addEventListener("change", keyChanged);
  byId("reset-settings").addEventListener("click", () => {
    for (const name of KEPT) field(name).value = name === "draft" ? "auto" : "";
    store();
  });
  window.addEventListener("storage", (event) => {
    if (event.key === "divine.settings" && !byId("settings").open) restore();
  });
}
