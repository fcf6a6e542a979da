// Asking about a film: a prompt, a box, or both; the answers stay listed with the film.

import { get, post, remove } from "./api.js";
import { svgRect } from "./boxes.js";
import { Words } from "./words.js";

const BOX_ALONE = "What is in this box?";
const NO_BOX = "Type a finding or a question in English, draw a box, or both.";

// The class of an answer's lines: those of a finding in that state; a region is neither present nor absent.
const KINDS = { present: "present", indeterminate: "review", uncalibrated: "review", absent: "absent", left_out: "absent" };

export class Asking {
  // path: of the film; isKept: whether the node keeps what is asked
  constructor(path, boxes, drawn, isKept) {
    Object.assign(this, { path, boxes, drawn, isKept, count: 0 });
    this.form = document.getElementById("ask");
    this.prompt = document.getElementById("prompt");
    this.state = document.getElementById("ask-state");
    this.alert = document.getElementById("ask-alert");
    this.list = document.getElementById("answers");
    this.template = document.getElementById("answer");
    this.words = JSON.parse(this.template.dataset.words);
    this.sources = JSON.parse(this.template.dataset.sources);
    this.inWords = new Words(path, boxes, this.form);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.load();
  }

  // A film that was not processed answers nothing.
  get isClosed() {
    return this.form.hidden;
  }

  async load() {
    const [asked, prompts] = await Promise.allSettled([
      this.isKept ? get(`${this.path}/questions`) : { questions: [] },
      get("/api/v1/prompts"),
    ]);
    if (asked.status === "fulfilled") this.add(asked.value.questions);
    if (prompts.status === "fulfilled") {
      const options = prompts.value.suggestions.map((value) => Object.assign(document.createElement("option"), { value }));
      document.getElementById("prompts").replaceChildren(...options);
    }
  }

  // Adds what others asked, and says what was sent; returns whether the node answered.
  async update() {
    const answer = await get(`${this.path}/questions`).catch(() => null);
    if (!answer) return false;
    this.add(answer.questions);
    for (const { id } of answer.questions.filter(({ sent }) => sent)) {
      this.setSent(this.list.querySelector(`[data-key="q${id}"] .send`));
    }
    return true;
  }

  // Says what would be asked about.
  onDrawn(box) {
    const text = box
      ? `Box: columns ${Math.round(box.left)} to ${Math.round(box.right)}, rows ${Math.round(box.top)} to ${Math.round(box.bottom)}.`
      : NO_BOX;
    clearTimeout(this.telling);
    this.telling = setTimeout(() => (this.state.textContent = text), 150);
  }

  async ask() {
    if (this.form.getAttribute("aria-busy") === "true") return;
    const prompt = this.prompt.value.trim() || null;
    const { box } = this.drawn;
    this.alert.textContent = "";
    if (!prompt && !box) {
      this.alert.textContent = "Nothing is asked: type a finding or a question, or draw a box.";
      this.prompt.focus();
      return;
    }
    const question = { prompt, box: box && [box.left, box.top, box.right, box.bottom] };
    this.setBusy(true);
    try {
      const { questions } = await this.post(question);
      this.add(questions);
      // The reader may have begun the next question meanwhile.
      if ((this.prompt.value.trim() || null) === prompt) this.prompt.value = "";
      if (this.drawn.box === box) this.drawn.clear();
      if (questions.length) this.show(questions.at(-1)); // last, for what it says must stay
      else this.tell("Answered from the report, in standard wording.");
    } catch (error) {
      this.alert.textContent = error.message;
    }
    this.setBusy(false);
  }

  // The node decides whether a text is a prompt or a question in words. A box alone asks what was found in it.
  post({ prompt, box }) {
    return this.inWords.ask(prompt ?? BOX_ALONE, box);
  }

  tell(text) {
    clearTimeout(this.telling);
    this.state.textContent = text;
  }

  setBusy(isBusy) {
    this.form.setAttribute("aria-busy", String(isBusy));
    this.form.querySelector(".go").disabled = isBusy;
    if (isBusy) this.state.textContent = "The node is asked.";
  }

  show(question) {
    const key = `q${question.id}`;
    const item = this.list.querySelector(`[data-key="${key}"]`);
    this.boxes.pin(key, true);
    item.scrollIntoView({ block: "nearest" });
    const [tag, ...name] = [".tag", "b", ".probability", ".mark"].map((part) => item.querySelector(part).textContent);
    this.tell(`Answer: ${tag} ${name.filter(Boolean).join(", ")}. ${this.said(question)}`);
  }

  add(questions) {
    for (const question of questions) {
      if (this.list.querySelector(`[data-key="q${question.id}"]`)) continue; // another answer brought it
      this.count += 1;
      question.id ??= String(this.count);
      this.list.prepend(this.item(question));
      document.getElementById("asked-boxes").append(...this.rects(question));
    }
    document.getElementById("asked").hidden = !this.count;
    this.boxes.drawTags();
  }

  said({ message, said }) {
    return message ?? (said || this.template.dataset.noSentence);
  }

  mark(question) {
    return `Q${this.count}${KINDS[question.state] === "review" ? "?" : ""}`;
  }

  item(question) {
    const item = this.template.content.cloneNode(true).firstElementChild;
    const key = `q${question.id}`;
    const kind = KINDS[question.state] ?? "located";
    const put = (part, text) => (item.querySelector(part).textContent = text);
    item.dataset.key = key;
    item.classList.add(kind);
    item.querySelector(".name").dataset.pins = key;
    item.querySelector(".tag").classList.add(kind);
    put(".tag", this.mark(question));
    put("b", asked(question));
    put(".probability", number(question));
    put(".mark", question.error ? "" : this.words[question.state ?? ""]);
    put(".sentence", this.said(question));
    const worded = question.notes.includes("severity_worded") ? this.template.dataset.worded : "";
    const why = question.reason ?? (question.state === "uncalibrated" ? this.template.dataset.unmeasured : "");
    put(".objection", [worded, why].filter(Boolean).join(" "));
    put(".who", this.who(question));
    this.setSending(item.querySelector(".send"), question);
    return item;
  }

  who({ asked_at: at, asked_by: by, source }) {
    if (!at) return "not kept";
    const zone = document.body.dataset.zone;
    const time = new Date(at).toLocaleString("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "short" });
    return `${time}${by ? `, ${by}` : ""}, ${this.sources[source] ?? source}`;
  }

  setSending(button, { id, sent, error }) {
    if (error && sent === false) return this.setRemoving(button, id);
    button.hidden = Boolean(error) || sent === undefined; // a node that sends no answers says nothing of it
    if (sent) return this.setSent(button);
    button.addEventListener("click", async () => {
      button.disabled = true;
      this.alert.textContent = "";
      try {
        await post(`/api/v1/questions/${id}/send`);
        this.setSent(button);
        this.state.textContent = "The answer is queued for the PACS.";
      } catch (error) {
        this.alert.textContent = error.message;
        button.disabled = false;
      }
    });
  }

  // A question that the model refused says nothing about the film, and may go.
  setRemoving(button, id) {
    button.textContent = "Remove";
    button.addEventListener("click", async () => {
      this.alert.textContent = "";
      try {
        await remove(`/api/v1/questions/${id}`);
      } catch (failed) {
        return void (this.alert.textContent = failed.message);
      }
      for (const part of document.querySelectorAll(`[data-key="q${id}"]`)) part.remove();
      document.getElementById("asked").hidden = !this.list.children.length;
      this.boxes.drawTags();
      this.prompt.focus();
    });
  }

  setSent(button) {
    button.disabled = true;
    button.textContent = "Sent to PACS";
  }

  // The boxes of an answer, and the box that was asked about if it is none of them.
  rects(question) {
    const key = `q${question.id}`;
    const kind = KINDS[question.state] ?? "located";
    const isAsked = (edges) => question.box && edges.every((edge, index) => Math.abs(edge - question.box[index]) < 0.5);
    const found = question.boxes.map(({ box }) => {
      const rect = svgRect(`box asked ${kind}`, box);
      const label = `${asked(question)}: ${this.words[question.state ?? ""]}`;
      Object.assign(rect.dataset, { key, number: this.mark(question), label });
      for (const [name, value] of Object.entries({ role: "img", "aria-label": label, tabindex: "0" })) rect.setAttribute(name, value);
      return rect;
    });
    if (!question.box || question.boxes.some(({ box }) => isAsked(box))) return found;
    const drawn = svgRect("box asked drawn", question.box);
    drawn.dataset.key = key;
    drawn.setAttribute("aria-hidden", "true");
    return [drawn, ...found];
  }
}

// As the report of the answer says it: the probability of a finding in whole percent, the score of a place.
function number({ score, state }) {
  if (score === null) return "";
  return state ? `${Math.floor(100 * score + 0.5)} %` : `score ${score.toFixed(2)}`;
}

function asked({ prompt, box }) {
  if (!prompt) return BOX_ALONE;
  return box ? `${prompt}, in a box` : prompt;
}
