// Corrections of a film's findings: each is stored at once, they leave together, and the page follows the new report.

import { post } from "./api.js";
import { edges } from "./boxes.js";

const byId = (id) => document.getElementById(id);

export class Correcting {
  // path: of the film; editing: moves and draws boxes; refresh: fetches the page again and hands it to `follow`
  constructor(path, { boxes, editing, refresh }) {
    Object.assign(this, { path, boxes, editing, refresh, ids: new Map(), after: null, answered: null, isStale: false });
    this.section = byId("correcting");
    if (!this.section) return; // a film in no study, or one that was not read
    editing.closed = () => this.isStale && refresh();
    document.addEventListener("click", (event) => this.onClick(event));
    for (const kind of ["focusin", "pointerover"]) document.addEventListener(kind, (event) => this.aim(event.target));
    byId("adding").addEventListener("submit", (event) => {
      event.preventDefault();
      this.add(event.target);
    });
    this.count(byId("version"));
    setInterval(() => this.tick(), 1000);
  }

  onClick({ target }) {
    const chosen = target.closest?.("[data-correct]");
    if (chosen) this[chosen.dataset.correct](chosen, chosen.closest(".correct"));
    const taken = target.closest?.("[data-withdraws]");
    if (taken) this.withdraw(taken);
    if (target.closest?.("[data-finish]")) this.finish();
  }

  // Lets all corrections of the study leave now.
  async finish() {
    if (!document.querySelector("[data-finish]")) return;
    const alert = byId("correct-alert");
    alert.textContent = "";
    try {
      await post(`/api/v1/studies/${byId("results").dataset.study}/finish`);
      await this.refresh(true);
    } catch (error) {
      alert.textContent = error.message;
    }
    if (document.activeElement === document.body) byId("frame").focus({ preventScroll: true });
  }

  accept(button, { dataset, lastElementChild }) {
    return this.press(button, { kind: "accept", prompt: dataset.prompt }, lastElementChild);
  }

  withdraw(button) {
    return this.press(button, { kind: "withdraw", withdraws: button.dataset.withdraws }, byId("correct-alert"));
  }

  reject(button, finding) {
    const form = this.ask(button, finding, "rejecting", () => ({ kind: "reject", prompt: finding.dataset.prompt }));
    form.querySelector(".what").textContent = finding.dataset.name;
    form.setAttribute("aria-label", `Reject: ${finding.dataset.name}`);
    form.querySelector(".save").focus();
  }

  reword(button, finding) {
    const content = (form) => ({ kind: "reword", prompt: finding.dataset.prompt, text: form.elements.text.value.trim() });
    const form = this.ask(button, finding, "rewording", content);
    const field = form.elements.text;
    form.setAttribute("aria-label", `Reword: ${finding.dataset.name}`);
    field.value = finding.dataset.text;
    field.focus();
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // a sentence is one line
      form.requestSubmit();
    });
  }

  move(button, finding) {
    const { tracks } = button.dataset;
    const { prompt } = finding.dataset;
    this.editing.open({
      title: `Move: ${button.dataset.name}.`,
      box: edges(document.querySelector(`rect[data-tracking="${tracks}"]`)),
      isNew: false,
      opener: button,
      save: (box) => this.store({ kind: "move", prompt, tracking_uid: tracks, box }, prompt, () => this.editing.close()),
    });
  }

  add(form) {
    const choice = form.elements.prompt;
    this.drawNew(`Add: ${choice.selectedOptions[0].textContent}.`, choice.value, form.querySelector("button"));
  }

  draw(button, { dataset }) {
    this.drawNew(`Draw the box: ${dataset.name}.`, dataset.prompt, button);
  }

  drawNew(title, prompt, opener) {
    this.editing.open({
      title,
      box: this.editing.drawn.box,
      isNew: true,
      opener,
      save: (box) => this.store({ kind: "add", prompt, box }, prompt, () => this.editing.close()),
    });
  }

  // Puts a small form in the place of a finding's buttons; content: what it stores.
  ask(button, finding, template, content) {
    const choices = finding.querySelector(".choices");
    const form = byId(template).content.cloneNode(true).firstElementChild;
    const alert = finding.lastElementChild;
    const close = () => {
      form.remove();
      choices.hidden = false;
      alert.textContent = "";
      button.focus();
      if (this.isStale) this.refresh();
    };
    form.querySelector(".cancel").addEventListener("click", close);
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await this.press(form.querySelector(".save"), content(form), alert, close);
    });
    choices.hidden = true;
    choices.after(form);
    return form;
  }

  async press(button, content, alert, close = () => {}) {
    button.disabled = true;
    alert.textContent = "";
    try {
      await this.store(content, button.closest(".correct")?.dataset.prompt, close);
    } catch (error) {
      alert.textContent = error.message;
    }
    button.disabled = false;
  }

  // Stores a correction. One that is sent again after a lost answer has the same id, so that it counts once.
  async store(content, prompt, close = () => {}) {
    const key = JSON.stringify(content);
    const id = this.ids.get(key) ?? randomId();
    this.ids.set(key, id);
    await post(`${this.path}/corrections`, { ...content, id });
    this.ids.delete(key);
    close();
    this.after = { id, prompt };
    this.answered = byId("results").dataset.films;
    await this.refresh(true);
  }

  // Puts in place what a fresh page says of the film; returns false if the reader has to ask for it.
  follow(fresh) {
    const now = fresh.getElementById("version");
    if (!this.section || !now) return false;
    // The version may be called written in a page that was made before its answer could be seen.
    const isAnswered = this.answered !== null && fresh.getElementById("results").dataset.films !== this.answered;
    const isWanted = this.after || this.isStale || isAnswered || ["waiting", "pending"].includes(byId("version").dataset.state);
    if (isAnswered) this.answered = null;
    this.say(now);
    if (!isWanted) return false;
    // A form that is open would be lost; its end asks again.
    this.isStale = Boolean(document.querySelector("form.inline")) || (this.editing.isOpen && !this.after);
    if (this.isStale) return true;
    const focused = this.focused();
    for (const part of document.querySelectorAll("[data-part]")) {
      const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
      if (other) part.replaceChildren(...document.adoptNode(other).childNodes);
    }
    this.boxes.drawTags();
    this.refocus(focused);
    return true;
  }

  // Says how far the new version is, once for each step of it.
  say(now) {
    const said = byId("version");
    said.dataset.state = now.dataset.state;
    this.count(now);
    const [shown, fresh] = [said, now].map((part) => part.querySelector("[data-leaves]"));
    if (shown && fresh) fresh.textContent = shown.textContent; // a second that has passed is no news
    if (now.textContent === said.textContent) return;
    const isHeld = document.activeElement?.matches("[data-finish]");
    said.replaceChildren(...document.adoptNode(now).childNodes);
    this.tick();
    if (isHeld) said.querySelector("[data-finish]")?.focus();
  }

  // Notes until when corrections wait, by the clock of this page: that of the node may differ.
  // The node tells whole seconds, and they are some time on the way: what differs by less is the same time.
  count(status) {
    const leaves = performance.now() + 1000 * Number(status.querySelector("[data-leaves]")?.dataset.leaves);
    if (!(Math.abs(leaves - this.leaves) < 2000)) this.leaves = leaves;
  }

  tick() {
    const shown = document.querySelector("[data-leaves]");
    if (shown) shown.textContent = `${Math.max(0, Math.ceil((this.leaves - performance.now()) / 1000))} s`;
  }

  // Names the element that has the focus, so that it is found again in a fresh part.
  focused() {
    const { activeElement: element } = document;
    if (!element?.closest("[data-part]")) return null;
    const { correct, tracks, withdraws, pins } = element.dataset;
    const finding = element.closest(".correct");
    if (finding) {
      const own = tracks ? `[data-tracks="${tracks}"]` : `[data-correct="${correct}"]`;
      return `[data-prompt="${finding.dataset.prompt}"] ${own}`;
    }
    if (withdraws) return `[data-withdraws="${withdraws}"]`;
    return pins ? `[data-pins="${pins}"]` : null;
  }

  // Focuses the same place as before; after a correction, what can be done next about it.
  refocus(focused) {
    const { after } = this;
    this.after = null;
    const places = [focused, ...(after ? [`[data-prompt="${after.prompt}"] button`, `[data-withdraws="${after.id}"]`, "#missed"] : [])];
    const isLost = !document.activeElement || document.activeElement === document.body;
    if (!isLost) return;
    for (const place of places.filter(Boolean)) {
      const found = document.querySelector(place);
      if (!found) continue;
      found.focus({ preventScroll: !after });
      return;
    }
  }

  // Shows which box a button is about.
  aim(target) {
    const tracks = target?.closest?.("[data-tracks]")?.dataset.tracks;
    for (const rect of document.querySelectorAll("rect[data-tracking]")) {
      rect.classList.toggle("aimed", rect.dataset.tracking === tracks);
    }
  }
}

function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
