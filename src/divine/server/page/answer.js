/* One message as it is shown: what a person wrote, as it was written, or an answer with Markdown, origins
 * and figures. An answer grows while it comes: blocks that are finished stay as they are and only the last
 * one is made anew. Knows no server and no storage; its buttons call the `actions` it was given. */

import { copyButton, el, fitHeight } from "./dom.js";
import { draftPanel, figureLine } from "./figures.js";
import { blocksOf, renderBlock } from "./markdown.js";
import { Origins } from "./origins.js";

const NOTES = {
  stopped: "Stopped.",
  interrupted: "The page was closed before the answer was finished.",
  length: "Cut off at the most tokens allowed.",
};

/** A message's list item. `actions`: {edit(index, text), remove(index), retry(index)}. */
export class MessageView {
  /** message: {role, content, spans?, figures?, usage?, state?} */
  constructor(message, index, actions) {
    this.message = message;
    this.index = index;
    this.actions = actions;
    this.blocks = [];
    this.origins = new Origins(message.spans);
    this.body = el("div", { class: "body" });
    this.foot = el("div", { class: "foot" });
    this.panel = el("div", { class: "panel" });
    const who = message.role === "user" ? "You" : "Answer";
    this.element = el("li", { class: `message ${message.role}` },
      el("h2", { class: "unseen" }, who), this.body, this.foot, this.panel);
    this.render();
  }

  get mine() {
    return this.message.role === "user";
  }

  /** Text and spans of one chunk. */
  append(text, spans) {
    const from = this.message.content.length;
    this.message.content += text;
    this.origins.add(spans, from, this.message.content.length);
  }

  /** Bring all that is shown up to date. */
  render() {
    this.element.setAttribute("aria-busy", String(this.message.state === "coming"));
    if (this.mine) this.#renderQuestion();
    else this.#renderAnswer();
    this.#renderFoot();
  }

  /** As it was written, but for fenced code, which is set as code. */
  #renderQuestion() {
    const { content } = this.message;
    const parts = [];
    let at = 0;
    const plain = (to) => {
      const text = content.slice(at, to).replace(/^\n+|\n+$/g, "");
      if (text !== "") parts.push(el("p", {}, text));
    };
    for (const node of blocksOf(content).filter((block) => block.name === "FencedCode")) {
      plain(node.from);
      parts.push(renderBlock(node, content, (from, to) => [content.slice(from, to)]));
      at = node.to;
    }
    plain(content.length);
    this.body.replaceChildren(...parts);
  }

  #renderAnswer() {
    const { content, state } = this.message;
    this.body.classList.toggle("waiting", state === "coming" && content === "");
    const write = (from, to) => this.origins.write(content, from, to);
    const nodes = blocksOf(content);
    const origins = this.origins.end;
    let same = 0;
    const settled = (block, node) => block && node && block.name === node.name && block.from === node.from &&
      block.origins >= Math.min(node.to, origins) && block.text === content.slice(node.from, node.to);
    while (same < nodes.length && settled(this.blocks[same], nodes[same])) same += 1;
    for (const block of this.blocks.splice(same)) block.element.remove();
    for (const node of nodes.slice(same)) {
      const element = renderBlock(node, content, write);
      this.body.append(element);
      this.blocks.push({ name: node.name, from: node.from, text: content.slice(node.from, node.to), origins, element });
    }
  }

  #renderFoot() {
    const { state, figures, usage, reason } = this.message;
    if (state === "coming") {
      this.foot.replaceChildren(el("p", { class: "figures" }, ...figureLine(figures ?? {})));
      this.panel.replaceChildren();
      return;
    }
    const silent = !this.mine && this.message.content === "";
    const note = reason ?? NOTES[state] ?? (silent ? "The model ended its turn without a word." : undefined);
    this.foot.replaceChildren(
      ...(this.mine ? [] : [el("p", { class: "figures" }, ...figureLine(usage ?? figures ?? {}))]),
      ...(note ? [el("p", { class: `note ${reason ? "wrong" : ""}` }, note)] : []),
      el("div", { class: "actions" }, ...this.#buttons()));
    this.panel.replaceChildren(...(this.mine || this.origins.end === 0 ? [] : [draftPanel(this.origins, usage)]));
  }

  #buttons() {
    const button = (text, label, act) =>
      el("button", { type: "button", class: "text", "aria-label": label, onclick: act }, text);
    const buttons = [copyButton(() => this.message.content, "Copy this message")];
    if (!this.mine) buttons.push(button("Retry", "Answer again", () => this.actions.retry(this.index)));
    buttons.push(button("Edit", "Edit this message", () => this.edit()));
    buttons.push(button("Delete", "Delete this message", () => this.actions.remove(this.index)));
    return buttons;
  }

  /** Turn into a text area; saving a question asks it again, saving an answer only changes it. */
  edit() {
    if (this.element.querySelector(".editor")) return;
    const area = el("textarea", { class: "editor", "aria-label": "Edit the message", rows: "1" });
    area.value = this.message.content;
    const close = () => {
      editor.remove();
      this.body.hidden = this.foot.hidden = this.panel.hidden = false;
    };
    const save = () => {
      if (area.value.trim() === "") return area.focus();
      close();
      return this.actions.edit(this.index, area.value);
    };
    const editor = el("div", { class: "editing" }, area, el("div", { class: "actions shown" },
      el("button", { type: "button", class: "text strong", onclick: save }, this.mine ? "Send" : "Save"),
      el("button", { type: "button", class: "text", onclick: () => { close(); this.actions.focus(); } }, "Cancel")));
    area.addEventListener("input", () => fitHeight(area));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
        this.actions.focus();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && this.mine) {
        event.preventDefault();
        save();
      }
    });
    this.body.hidden = this.foot.hidden = this.panel.hidden = true;
    this.body.before(editor);
    fitHeight(area);
    area.focus();
  }
}
