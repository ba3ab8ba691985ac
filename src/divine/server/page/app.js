/* The page as a whole: header, composer, sheets and keys around one open Chat. */

import { modelName } from "./api.js";
import { Chat } from "./chat.js";
import { byId, el, fitHeight } from "./dom.js";
import * as settings from "./settings.js";
import * as store from "./store.js";

const NEAR_END = 80; // pixels from the end that still count as reading along
const TITLE = 60; // characters of a chat's title

const prompt = byId("prompt");
const scroll = byId("scroll");
let following = true; // the view stays at the end while an answer comes

/** Back to the message box; not where that would bring up a keyboard of the screen. */
function focusPrompt() {
  if (matchMedia("(hover: hover)").matches) prompt.focus();
}

// ---- notices -------------------------------------------------------------------------------------

function notice(text, label, act) {
  byId("notice").replaceChildren(el("span", {}, text));
  if (label) byId("notice").append(el("button", { type: "button", class: "text strong", onclick: () => { clearNotice(); act(); } }, label));
  byId("notice").append(el("button", { type: "button", class: "text", "aria-label": "Dismiss", onclick: clearNotice }, "×"));
  byId("notice").hidden = false;
}

function clearNotice() {
  byId("notice").hidden = true;
  byId("notice").replaceChildren();
}

/** Ask for the API key right where the refusal is told, then go on. */
function askKey(text, proceed) {
  const input = el("input", { type: "password", id: "key-now", "aria-label": "API key", placeholder: "API key", autocomplete: "off" });
  const form = el("form", { class: "key" }, el("span", {}, text), input, el("button", { class: "text strong" }, "Use it"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    settings.setApiKey(input.value.trim());
    clearNotice();
    greet();
    proceed();
    focusPrompt();
  });
  byId("notice").replaceChildren(form);
  byId("notice").hidden = false;
  input.focus();
}

// ---- the open chat -------------------------------------------------------------------------------

function toEnd() {
  following = true;
  scroll.scrollTop = scroll.scrollHeight;
}

const chat = new Chat(byId("messages"), {
  notice,
  askKey,
  clear: clearNotice,
  busy(on) {
    byId("send").hidden = on;
    byId("stop").hidden = !on;
    if (on) byId("status").textContent = "Answering";
  },
  announce: (text) => (byId("status").textContent = text),
  shown(count, jump) {
    byId("empty").hidden = count > 0;
    if (jump) toEnd();
  },
  grown() {
    if (following) toEnd();
  },
  focus: focusPrompt,
});

function sendPrompt() {
  const text = prompt.value.trim();
  if (text === "" || chat.busy) return;
  prompt.value = "";
  fitHeight(prompt);
  chat.send(text);
}

async function greet() {
  try {
    chat.model = await modelName(settings.apiKey());
    byId("model").textContent = chat.model;
    document.title = `${chat.model} · Divine`;
  } catch (failure) {
    if (failure.kind === "key") askKey(failure.message, () => {});
    else notice(failure.message, "Try again", greet);
  }
}

// ---- sheets --------------------------------------------------------------------------------------

function listChats() {
  const rows = store.all().map((entry) => {
    const first = entry.messages.find((message) => message.role === "user")?.content ?? "";
    const title = first.length > TITLE ? `${first.slice(0, TITLE)}…` : first;
    return el("li", {},
      el("button", { type: "button", class: "entry", "aria-current": entry.id === chat.chat.id ? "true" : null,
        onclick: () => { byId("chats").close(); chat.open(store.load(entry.id) ?? entry); focusPrompt(); } },
      el("span", {}, title), el("time", { class: "quiet" }, when(entry.updated))),
      el("button", { type: "button", class: "text", "aria-label": `Delete the chat “${title}”`,
        onclick: () => removeChat(entry.id) }, "Delete"));
  });
  byId("chat-list").replaceChildren(...(rows.length > 0 ? rows : [el("li", { class: "quiet" }, "None yet.")]));
}

function removeChat(id) {
  if (id === chat.chat.id) chat.startNew();
  store.remove(id);
  listChats();
  byId("chat-list").querySelector("button")?.focus();
}

const when = (time) => new Date(time).toLocaleString([], { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

function showDrafts(on) {
  document.documentElement.classList.toggle("with-drafts", on);
  byId("show-drafts").setAttribute("aria-pressed", String(on));
  store.keep("drafts", on ? "on" : "");
  if (following) toEnd();
}
const turnDrafts = () => showDrafts(byId("show-drafts").getAttribute("aria-pressed") !== "true");

// ---- keys and clicks -----------------------------------------------------------------------------

function newChat() {
  chat.startNew();
  focusPrompt();
}

prompt.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    sendPrompt();
  } else if (event.key === "ArrowUp" && prompt.value === "" && !chat.busy) {
    const mine = chat.views.findLast((view) => view.mine);
    if (!mine) return;
    event.preventDefault();
    mine.edit();
  }
});
prompt.addEventListener("input", () => fitHeight(prompt));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.busy && !document.querySelector("dialog[open]")) chat.stop();
  if (!event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.code === "KeyD") { event.preventDefault(); turnDrafts(); }
  if (event.code === "KeyN") { event.preventDefault(); newChat(); }
});
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  sendPrompt();
});
byId("stop").addEventListener("click", () => { chat.stop(); focusPrompt(); });
byId("new-chat").addEventListener("click", newChat);
byId("show-drafts").addEventListener("click", turnDrafts);
byId("open-settings").addEventListener("click", settings.openSettings);
byId("open-chats").addEventListener("click", () => { listChats(); byId("chats").showModal(); });
byId("theme").addEventListener("click", labelTheme.bind(null, true));
byId("to-end").addEventListener("click", () => { toEnd(); focusPrompt(); });
for (const sheet of document.querySelectorAll("dialog")) {
  sheet.addEventListener("click", (event) => { if (event.target === sheet && event.clientX < sheet.getBoundingClientRect().left) sheet.close(); });
  sheet.addEventListener("close", focusPrompt);
}
// Only going up is the reader's own doing: the end also moves away when an answer grows.
let lastTop = 0;
scroll.addEventListener("scroll", () => {
  const nearEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END;
  if (nearEnd) following = true;
  else if (scroll.scrollTop < lastTop) following = false;
  lastTop = scroll.scrollTop;
  byId("to-end").hidden = following;
});
window.addEventListener("pagehide", () => { if (chat.busy) chat.save(); });
store.onOtherTab((id) => { if (id === chat.chat.id) chat.changedElsewhere(); });

function labelTheme(turn) {
  if (turn) window.turnTheme();
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  byId("theme").setAttribute("aria-label", dark ? "Turn to light" : "Turn to dark");
}

settings.startSettings(greet);
showDrafts(store.recall("drafts") === "on");
labelTheme(false);
toEnd();
greet();
