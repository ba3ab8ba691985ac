/* Chats in this browser's storage: one entry for each, so that tabs do not write over each other. Which
 * chat a tab shows is the tab's own. Knows the shape of a chat only as far as it must to list it:
 * {id, updated, messages: [{role, content, ...}]}. */

const PREFIX = "divine.chat.";
const CURRENT = "divine.current";

/** Run `use`; null where storage is forbidden or holds nonsense. */
function careful(use) {
  try {
    return use();
  } catch {
    return null;
  }
}

function validChat(text) {
  const chat = text ? JSON.parse(text) : null;
  const sound = Array.isArray(chat?.messages) && chat.messages.every(
    (message) => ["user", "assistant"].includes(message?.role) && typeof message.content === "string");
  return sound ? chat : null;
}

export const newId = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;

export const load = (id) => careful(() => validChat(localStorage.getItem(PREFIX + id)));

/** Keep a chat; false where the browser has no room or no leave for it. An empty chat is not kept. */
export function save(chat) {
  if (chat.messages.length === 0) {
    remove(chat.id);
    return true;
  }
  return careful(() => {
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
    return true;
  }) ?? false;
}

export const remove = (id) => careful(() => localStorage.removeItem(PREFIX + id));

/** All chats, the latest first. */
export function all() {
  const keys = careful(() => Object.keys(localStorage)) ?? [];
  return keys.filter((key) => key.startsWith(PREFIX))
    .map((key) => load(key.slice(PREFIX.length))).filter(Boolean)
    .sort((a, b) => (b.updated ?? 0) - (a.updated ?? 0));
}

/** What this tab shows: its own chat after a reload, else the latest one; null if there is none. */
export function current() {
  const id = careful(() => sessionStorage.getItem(CURRENT));
  return id ? load(id) : (all()[0] ?? null);
}

export const setCurrent = (id) => careful(() => sessionStorage.setItem(CURRENT, id));

/** Call `changed(id)` when another tab has written or removed a chat. */
export function onOtherTab(changed) {
  window.addEventListener("storage", (event) => {
    if (event.key?.startsWith(PREFIX)) changed(event.key.slice(PREFIX.length));
  });
}

/** Small values by name, `local` for all tabs or not. */
export const recall = (name, local = true) =>
  careful(() => (local ? localStorage : sessionStorage).getItem(`divine.${name}`));
export const keep = (name, value, local = true) =>
  careful(() => (local ? localStorage : sessionStorage).setItem(`divine.${name}`, value));
