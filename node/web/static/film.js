// The page of a film: puts together the film, its boxes, its window, the questions, the corrections, and the keys.

import { page, retries } from "./api.js";
import { Asking } from "./ask.js";
import { Boxes } from "./boxes.js";
import { Correcting } from "./correct.js";
import { Drawn } from "./draw.js";
import { BoxEditing } from "./edit.js";
import { GrayWindow } from "./gray.js";
import { onKeys } from "./keys.js";
import { watch } from "./live.js";
import { pointers } from "./pointer.js";
import { Viewport } from "./viewport.js";

const PAN = 60; // screen pixels to a press of an arrow
const GRAY = 0.02; // of the range of values to a press of an arrow

const byId = (id) => document.getElementById(id);
const frame = byId("frame");
const { path } = frame.dataset;
const alert = byId("film-alert");

const earlier = document.querySelector("#earlier img");
const viewport = new Viewport(frame, byId("stage"), (scale) => {
  byId("zoom").textContent = `${Math.round(100 * scale)} %`;
  showEarlier();
});
viewport.setSize(Number(frame.dataset.columns), Number(frame.dataset.rows));
const boxes = new Boxes(byId("stage"), viewport);
const drawn = new Drawn(byId("drawn"), viewport, (box) => {
  if (editing.isOpen) editing.onDrawn(box);
  else asking.onDrawn(box);
  if (!box) setTool("pan");
});
const editing = new BoxEditing(frame, drawn, setTool);
const asking = new Asking(path, boxes, drawn, Boolean(byId("results")));
let [asked, oldest] = [0, 0]; // fetches of this page, and the oldest one that may still be shown
const correcting = new Correcting(path, { boxes, editing, refresh });
const gray = new GrayWindow(path, byId("picture"), byId("gray"), {
  said: (center, width) => (byId("reading").textContent = `C ${Math.round(center)}  W ${Math.round(width)}`),
  arrived(columns, rows) {
    if (!viewport.columns) byId("boxes").setAttribute("viewBox", `0 0 ${columns} ${rows}`);
    if (!viewport.columns) {
      viewport.setSize(columns, rows);
      boxes.drawTags();
    }
    byId("stage").classList.add("ready");
  },
  failed: (text) => (alert.textContent = text),
});

// The earlier film is zoomed as the film is, about the same part of it.
function showEarlier() {
  if (!earlier?.clientWidth || !earlier.naturalWidth || !viewport?.columns) return;
  const { column, row } = viewport.toFilm(...middle(frame.getBoundingClientRect()));
  const zoom = viewport.scale / viewport.fitting;
  const size = Math.min(earlier.clientWidth / earlier.naturalWidth, earlier.clientHeight / earlier.naturalHeight) * zoom;
  const [x, y] = [column / viewport.columns, row / viewport.rows].map((part) => 0.5 - part);
  earlier.style.transform = `translate(${x * size * earlier.naturalWidth}px, ${y * size * earlier.naturalHeight}px) scale(${zoom})`;
}

function middle({ left, top, width, height }) {
  return [left + width / 2, top + height / 2];
}

earlier?.addEventListener("load", showEarlier);

const SIDES = { left: "start", right: "end", top: "top", bottom: "bottom" };

// The letters of the sides go where the edges of the film go; tags find their corners anew.
viewport.turned = () => {
  for (const [side, column] of [["start", 0], ["end", viewport.columns]]) {
    const letter = document.querySelector(`.side[data-edge="${side}"]`);
    if (!letter) continue;
    const { x, y } = viewport.toDrawn(column, viewport.rows / 2);
    const edge = x === 0 ? "left" : x === 1 ? "right" : y === 0 ? "top" : "bottom";
    letter.className = `side ${SIDES[edge]}`;
    letter.firstElementChild.textContent = `${edge[0].toUpperCase()}${edge.slice(1)} edge of the film: `;
  }
  boxes.drawTags();
};

let tool = "pan";
let isSpaceHeld = false;

function setTool(wanted) {
  tool = wanted;
  for (const button of document.querySelectorAll("button[data-tool]")) {
    button.setAttribute("aria-pressed", String(button.dataset.tool === tool));
  }
  frame.dataset.tool = tool;
}

pointers(frame, {
  tool: (x, y) => (tool === "box" && editing.isOpen ? editing.toolAt(x, y) : tool),
  space: () => isSpaceHeld,
  on: {
    pan: (x, y) => viewport.pan(x, y),
    zoom: (factor, at) => viewport.zoom(factor, at),
    gray: (darker, flatter) => gray.change(darker, flatter),
    begin: (x, y) => drawn.begin(x, y),
    draw: (x, y) => drawn.draw(x, y),
    end(isCanceled) {
      if (isCanceled || !drawn.box || editing.isOpen) return;
      setTool("pan");
      if (matchMedia("(pointer: fine)").matches) byId("prompt").focus({ preventScroll: true });
    },
  },
});

const actions = {
  in: () => viewport.step(1),
  out: () => viewport.step(-1),
  fit: () => viewport.fit(),
  actual: () => viewport.actual(),
  turn: () => viewport.turn(),
  mirror: () => viewport.mirror(),
  invert: (button) => button.setAttribute("aria-pressed", String(gray.invert())),
  reset() {
    gray.reset();
    document.querySelector('[data-do="invert"]').setAttribute("aria-pressed", "false");
  },
  earlier(button) {
    if (button) button.setAttribute("aria-pressed", String(!(byId("earlier").hidden = !byId("earlier").hidden)));
  },
  boxes: (button) => button.setAttribute("aria-pressed", String(boxes.toggle())),
};

function press(name) {
  actions[name](document.querySelector(`[data-do="${name}"]`));
}

for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => press(button.dataset.do));
for (const button of document.querySelectorAll("button[data-tool]")) {
  button.addEventListener("click", () => setTool(button.dataset.tool === tool ? "pan" : button.dataset.tool));
}

function arrow(x, y) {
  return (event) => {
    const isOnFilm = event.target === frame || event.target === document.body || byId("boxes").contains(event.target);
    if (!isOnFilm) return false;
    if (drawn.step(x, y, event.shiftKey)) return true;
    if (event.shiftKey) gray.change(y * GRAY, x * GRAY);
    else viewport.pan(-x * PAN, -y * PAN);
    return true;
  };
}

function follow(step) {
  const links = [...document.querySelectorAll(".strip a")];
  links[links.findIndex((link) => link.hasAttribute("aria-current")) + step]?.click();
}

onKeys({
  "+": () => press("in"),
  "=": () => press("in"),
  "-": () => press("out"),
  f: () => press("fit"),
  1: () => press("actual"),
  0: () => press("reset"),
  i: () => press("invert"),
  r: () => press("turn"),
  m: () => press("mirror"),
  h: () => press("boxes"),
  e: () => press("earlier"),
  p: () => setTool("pan"),
  w: () => setTool("gray"),
  j: () => boxes.move(1),
  k: () => boxes.move(-1),
  "[": () => follow(-1),
  "]": () => follow(1),
  "/": () => byId("prompt").focus(),
  s: () => correcting.finish(),
  n: () => document.querySelector('a[rel="next"]')?.click(),
  u: () => location.assign("/"),
  b() {
    if (asking.isClosed) return;
    setTool("box");
    frame.focus({ preventScroll: true });
    drawn.open();
  },
  Escape: () => (editing.isOpen ? editing.close() : drawn.clear()),
  Enter(event) {
    if (event.target !== frame || !drawn.box) return false;
    return void (editing.isOpen ? editing.save() : asking.ask());
  },
  " ": (event) => event.target === frame && ((isSpaceHeld = true), true),
  ArrowLeft: arrow(-1, 0),
  ArrowRight: arrow(1, 0),
  ArrowUp: arrow(0, -1),
  ArrowDown: arrow(0, 1),
});
document.addEventListener("keyup", (event) => {
  if (event.key === " ") isSpaceHeld = false;
});

// What became of the results is put in place, what others asked, and what follows a correction; any other new answer to a film waits for
// the reader, who may be looking.
// isChanged: this page has just changed something, which no page knows that was asked for before.
async function refresh(isChanged = false) {
  const number = ++asked;
  if (isChanged) oldest = number;
  const document = await page().catch(() => null);
  const fresh = document?.getElementById("results");
  if (!fresh || number < oldest) return; // pages may come in another order than they were asked for
  oldest = number;
  const results = byId("results");
  if (fresh.dataset.asked !== results.dataset.asked && (await asking.update())) results.dataset.asked = fresh.dataset.asked;
  if (correcting.follow(document)) results.dataset.films = fresh.dataset.films;
  else replacePart(document, "state");
  replacePart(document, "mark");
  byId("changed").hidden = fresh.dataset.films === results.dataset.films;
  results.replaceChildren(...results.ownerDocument.adoptNode(fresh).childNodes);
}

// Shows how far the study is, which may have a round before it is finished, or the review of the film.
function replacePart(document, name) {
  const [shown, fresh] = [window.document, document].map((page) => page.querySelector(`[data-part="${name}"]`));
  if (shown && fresh) shown.replaceChildren(...window.document.adoptNode(fresh).childNodes);
}

byId("changed")?.querySelector("a").addEventListener("click", (event) => {
  event.preventDefault();
  location.reload();
});

// The layer of boxes that are no findings: where the network looked for what it does not report. It is off at every load.
const searched = byId("show-searched"); // null if the network looked for nothing else
function showSearched() {
  for (const part of [byId("searched"), byId("searched-legend")]) part.toggleAttribute("hidden", !searched.checked);
}
if (searched) {
  searched.closest("label").hidden = false;
  searched.addEventListener("change", showSearched);
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return; // not kept by the browser as it was left
    searched.checked = false;
    showSearched();
  });
}

retries(byId("main"), alert);
if (byId("results")) watch(() => refresh(), { study: byId("results").dataset.study });

gray.load();
