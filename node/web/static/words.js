// Questions in words: the node decides what a text asks, and its reply stands above the field with the boxes it rests on.

import { post } from "./api.js";

const KEY = "reply"; // of the text and of the boxes that it rests on, which light up together

export class Words {
  // path: of the film; boxes: on it; form: to ask
  constructor(path, boxes, form) {
    Object.assign(this, { path, boxes, form });
    this.place = document.getElementById("reply");
    this.field = form.querySelector("input");
    form.addEventListener("click", ({ target }) => {
      if (target.dataset.words) this.send(target.dataset.words);
    });
  }

  // Asks a text as if it were typed; earlier: the film to compare with, and its study.
  send(text, earlier) {
    this.earlier = earlier;
    this.field.value = text;
    this.form.requestSubmit();
  }

  // Asks the node, shows its reply, and returns what the network was asked.
  async ask(text, box) {
    const { earlier } = this;
    this.earlier = undefined;
    const reply = await post(`${this.path}/replies`, { text, box, ...earlier });
    if (reply.text === null) this.clear();
    else this.show(text, reply);
    return reply;
  }

  clear() {
    this.boxes.rest(KEY, []);
    this.place.replaceChildren();
  }

  show(text, reply) {
    const made = document.getElementById("reply-parts").content.cloneNode(true);
    const [question, said, rests, choices, corrections] = made.children;
    question.querySelector("b").textContent = text;
    question.querySelector(".close").addEventListener("click", () => {
      this.clear();
      this.field.focus();
    });
    said.textContent = reply.text;
    if (reply.boxes.length) said.tabIndex = 0;
    this.boxes.rest(KEY, reply.boxes);
    rests.append(...this.findings());
    rests.hidden = rests.children.length === 0;
    const others = reply.earlier.filter(({ film, study }) => film !== reply.compared_with || study !== reply.compared_study);
    choices.append(...others.map((film) => this.choice(text, film)));
    choices.hidden = others.length === 0;
    corrections.append(...reply.corrections.map((proposed) => this.correction(proposed)));
    corrections.hidden = reply.corrections.length === 0;
    this.place.replaceChildren(made);
    this.place.scrollTop = 0;
    this.form.scrollIntoView({ block: "nearest" });
  }

  choice(text, { film, study, at }) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: at });
    button.addEventListener("click", () => this.send(text, { earlier: film, earlier_study: study }));
    return button;
  }

  // A button that opens a correction, as that of its finding does: a text corrects nothing by itself.
  correction({ kind, prompt, text }) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    button.addEventListener("click", () => {
      if (kind !== "add") return document.querySelector(`.correct[data-prompt="${prompt}"] [data-correct="${kind}"]`)?.click();
      const adding = document.getElementById("adding");
      adding.elements.prompt.value = prompt;
      adding.requestSubmit();
    });
    return button;
  }

  // A button for each reported finding with a box that the reply rests on.
  findings() {
    const marked = document.querySelectorAll(`#found rect[data-also="${KEY}"]`);
    return [...new Set([...marked].map((rect) => rect.dataset.key))].map((key) => {
      const name = document.querySelector(`.finding[data-key="${key}"] .name`);
      const button = Object.assign(document.createElement("button"), { type: "button" });
      Object.assign(button.dataset, { key, pins: key });
      button.setAttribute("aria-pressed", "false");
      button.textContent = `${name.querySelector(".tag").textContent} ${name.querySelector("b").textContent}`;
      return button;
    });
  }
}
