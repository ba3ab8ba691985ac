/* The conversation that is open: its messages, the answer that is coming, and what can be done to them.
 * Ties the server's stream to the messages shown and to the storage. Whatever goes wrong, what was said
 * stays. The caller is told of changes through `hooks`: {notice, clear, busy, announce, shown, focus}. */

import { Failure, streamChat } from "./api.js";
import { MessageView } from "./answer.js";
import * as settings from "./settings.js";
import * as store from "./store.js";

const SAVE_EVERY = 500; // milliseconds, while an answer comes
const MAX_TRIES = 5; // while the server is busy

const fresh = () => ({ id: store.newId(), updated: Date.now(), messages: [] });

export class Chat {
  constructor(list, hooks) {
    this.list = list;
    this.hooks = hooks;
    this.model = "";
    this.abort = null;
    this.views = [];
    this.actions = {
      edit: (index, text) => this.edit(index, text),
      remove: (index) => this.remove(index),
      retry: (index) => this.retry(index),
      focus: () => hooks.focus(),
    };
    this.open(store.current() ?? fresh());
  }

  get messages() {
    return this.chat.messages;
  }

  get busy() {
    return this.abort !== null;
  }

  open(chat) {
    this.stop();
    this.chat = chat;
    for (const message of chat.messages) {
      if (message.state === "coming") message.state = "interrupted";
    }
    store.setCurrent(chat.id);
    this.hooks.clear();
    this.show();
  }

  startNew() {
    this.open(fresh());
  }

  /** Make the messages from `from` on anew; `jump` to the end or stay where the reader is. */
  show(from = 0, jump = true) {
    for (const view of this.views.splice(from)) view.element.remove();
    for (let index = from; index < this.messages.length; index += 1) {
      const view = new MessageView(this.messages[index], index, this.actions);
      this.views.push(view);
      this.list.append(view.element);
    }
    this.hooks.shown(this.messages.length, jump);
  }

  save() {
    this.chat.updated = Date.now();
    if (!store.save(this.chat)) {
      this.hooks.notice("This browser has no room for more: delete some chats, or this one is lost when the page is closed.");
    }
  }

  /** Another tab has changed this chat: show it, or go on under a new name if there is unfinished work here. */
  changedElsewhere() {
    if (this.busy || this.list.querySelector(".editor")) {
      this.chat.id = store.newId();
      store.setCurrent(this.chat.id);
      this.save();
      return;
    }
    const chat = store.load(this.chat.id);
    if (chat) {
      this.chat = chat;
      this.show();
    }
  }

  send(text) {
    this.messages.push({ role: "user", content: text });
    this.show(this.messages.length - 1);
    this.save();
    return this.answer();
  }

  retry(index) {
    this.stop();
    this.messages.length = this.messages[index]?.role === "assistant" ? index : index + 1;
    this.show(this.messages.length);
    return this.answer();
  }

  edit(index, text) {
    this.stop();
    const message = this.messages[index];
    if (message.role === "assistant") {
      this.messages[index] = { role: "assistant", content: text };
      this.show(index);
      this.save();
      this.hooks.focus();
      return undefined;
    }
    message.content = text;
    this.messages.length = index + 1;
    this.show(index);
    this.save();
    return this.answer();
  }

  /** Delete a question with its answer, or the last answer alone; can be undone. */
  remove(index) {
    this.stop();
    const before = [...this.messages];
    const last = index === this.messages.length - 1;
    const first = this.messages[index].role === "assistant" && !last ? index - 1 : index;
    const pair = this.messages[first]?.role === "user" && this.messages[first + 1]?.role === "assistant";
    this.messages.splice(Math.max(0, first), pair ? 2 : 1);
    const { chat } = this;
    this.#redraw();
    this.hooks.notice("Deleted.", "Undo", () => {
      if (this.chat !== chat) return;
      chat.messages = before;
      this.#redraw();
    });
  }

  #redraw() {
    this.show();
    this.save();
    this.hooks.focus();
  }

  /** Hang up, if an answer is coming; what came of it stays. */
  stop() {
    if (!this.busy) return;
    this.abort.abort();
    this.hooks.clear();
  }

  #request() {
    const system = settings.systemPrompt();
    const said = this.messages.map(({ role, content }) => ({ role, content }));
    return {
      model: this.model || undefined,
      messages: system ? [{ role: "system", content: system }, ...said] : said,
      stream: true,
      stream_options: { include_usage: true },
      divine: { spans: true },
    };
  }

  /** Ask for the answer to the messages so far; resolves when it is finished, cut or refused. */
  async answer() {
    this.stop();
    this.hooks.clear();
    const { fields, wrong } = settings.requestFields();
    if (wrong) return this.hooks.notice(wrong, "Settings", settings.openSettings);
    const body = { ...this.#request(), ...fields };
    const abort = new AbortController();
    this.abort = abort;
    const { chat } = this;
    const message = { role: "assistant", content: "", state: "coming" };
    chat.messages.push(message);
    this.show(chat.messages.length - 1);
    const view = this.views.at(-1);
    this.hooks.busy(true);
    try {
      await this.#receive(body, view, abort.signal);
    } catch (error) {
      this.#fail(error, message, chat);
    } finally {
      if (this.abort === abort) {
        this.abort = null;
        this.hooks.busy(false);
      }
      this.#finish(chat, message, view);
    }
    return undefined;
  }

  #finish(chat, message, view) {
    message.spans = view.origins.pack();
    const index = chat.messages.indexOf(message); // -1: deleted or asked again meanwhile
    const silent = message.content === "" && !["done", "length"].includes(message.state);
    if (silent && index >= 0) chat.messages.splice(index, 1); // the question stays, to be sent again
    if (this.chat === chat && index >= 0) {
      if (this.views[index] === view && !silent) view.render();
      else this.show(index, false);
      this.hooks.grown();
    }
    if (this.chat === chat) this.save();
    else store.save(chat);
  }

  #fail(error, message, chat) {
    message.state = "stopped";
    if (error.name === "AbortError") return this.hooks.announce("Stopped.");
    if (!(error instanceof Failure)) console.error(error);
    const text = error instanceof Failure ? error.message : "This page failed: see the browser's console.";
    if (message.content !== "") message.reason = text;
    if (this.chat !== chat) return undefined;
    if (error.kind === "key") return this.hooks.askKey(text, () => this.answer());
    return this.hooks.notice(text, "Try again", () => this.#again());
  }

  #again() {
    return this.messages.at(-1)?.role === "assistant" ? this.retry(this.messages.length - 1) : this.answer();
  }

  async #receive(body, view, signal) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#stream(body, view, signal);
      } catch (error) {
        if (error.kind !== "busy" || attempt === MAX_TRIES || view.message.content !== "") throw error;
        await this.#wait(error, signal);
      }
    }
  }

  /** Count down to the next try, as the server asked. */
  async #wait(error, signal) {
    for (let left = Math.ceil(error.retryAfter); left > 0; left -= 1) {
      this.hooks.notice(`${error.message} Trying again in ${left} s.`);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 1000);
        signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
      });
      signal.throwIfAborted();
    }
    this.hooks.clear();
  }

  async #stream(body, view, signal) {
    const { message } = view;
    const clock = new Clock();
    const paint = painter(() => {
      view.render();
      this.hooks.grown();
    });
    let saved = performance.now();
    try {
      for await (const chunk of streamChat(body, settings.apiKey(), signal)) {
        const choice = chunk.choices?.[0];
        if (choice) this.#take(choice, view, clock);
        if (chunk.usage?.divine) message.usage = chunk.usage.divine;
        paint.soon();
        if (performance.now() - saved > SAVE_EVERY) {
          saved = performance.now();
          message.spans = view.origins.pack();
          this.save();
        }
      }
    } finally {
      paint.cancel();
    }
    if (message.state === "coming") message.state = "done";
    this.hooks.announce(message.content);
  }

  #take(choice, view, clock) {
    const { message } = view;
    const spans = Array.isArray(choice.divine?.spans) ? choice.divine.spans : [];
    const text = choice.delta?.content ?? "";
    if (text || spans.length > 0) view.append(text, spans);
    if (choice.divine?.tokens > 0) message.figures = clock.figures(choice.divine);
    if (choice.finish_reason) message.state = choice.finish_reason === "length" ? "length" : "done";
  }
}

/** Live figures: the rate is that of the tokens after the first piece, which waited for the prompt. */
class Clock {
  figures({ tokens, passes }) {
    const now = performance.now();
    this.first ??= { now, tokens };
    const seconds = (now - this.first.now) / 1000;
    return {
      tokens,
      tokens_per_second: seconds > 0.2 ? (tokens - this.first.tokens) / seconds : 0,
      tokens_per_pass: passes > 0 ? tokens / passes : 0,
    };
  }
}

/** Calls `draw` at most once for each frame, or a few times a second where the tab is hidden. */
function painter(draw) {
  let frame = null;
  let timer = null;
  const run = () => {
    cancel();
    draw();
  };
  const cancel = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = null;
  };
  const soon = () => {
    if (timer !== null) return;
    frame = requestAnimationFrame(run);
    timer = setTimeout(run, 250); // frames stop in a hidden tab
  };
  return { soon, cancel };
}
