// Boxes on the film and the lines of the report: pointed at, or focused, or pinned, both light up.

import { focusNext } from "./lines.js";

const SVG = "http://www.w3.org/2000/svg";
const NEAR = 4; // percent of the film; two tags nearer than this would cover each other

export function svgRect(kind, [left, top, right, bottom]) {
  const rect = document.createElementNS(SVG, "rect");
  rect.setAttribute("class", kind);
  place(rect, { left, top, right, bottom });
  return rect;
}

export function place(rect, { left, top, right, bottom }) {
  for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) {
    rect.setAttribute(name, Math.max(value, 0));
  }
}

export function edges(rect) {
  const [left, top, width, height] = ["x", "y", "width", "height"].map((name) => Number(rect.getAttribute(name)));
  return { left, top, right: left + width, bottom: top + height };
}

// A box may also light up with a second key: that of a reply which rests on it.
const parts = (key) => document.querySelectorAll(`[data-key="${key}"], [data-also="${key}"]`);
const keyOf = (element) => element?.closest?.("[data-key]")?.dataset.key;

export class Boxes {
  constructor(stage, viewport) {
    Object.assign(this, { viewport, lit: null, reply: { key: null, boxes: [] }, corners: new WeakMap() });
    this.svg = stage.querySelector("svg");
    this.tags = stage.querySelector(".tags");
    this.drawTags();
    for (const kind of ["pointerover", "focusin"]) {
      document.addEventListener(kind, (event) => this.light(keyOf(event.target) ?? keyOf(document.activeElement)));
    }
    document.addEventListener("click", (event) => {
      const pin = event.target.closest("[data-pins]");
      if (pin) this.pin(pin.dataset.pins);
    });
  }

  light(key) {
    if (key === this.lit) return;
    for (const part of document.querySelectorAll(".lit")) part.classList.remove("lit");
    this.lit = key;
    if (key) for (const part of parts(key)) part.classList.add("lit");
    this.settle();
  }

  // Keeps a finding lit, and brings its boxes into sight; again lets it go.
  pin(key, isPinned = !parts(key)[0]?.classList.contains("pinned")) {
    for (const part of document.querySelectorAll(".pinned")) part.classList.remove("pinned");
    for (const button of document.querySelectorAll("[data-pins]")) {
      button.setAttribute("aria-pressed", String(isPinned && button.dataset.pins === key));
    }
    if (!isPinned) return this.settle();
    for (const part of parts(key)) part.classList.add("pinned");
    const first = this.svg.querySelector(`rect[data-key="${key}"]`);
    if (first) this.viewport.reveal(edges(first));
    this.settle();
  }

  // Focuses the next finding of the report, or the one before.
  move(step) {
    const here = document.activeElement?.closest(".finding")?.querySelector(".name");
    focusNext([...document.querySelectorAll(".finding .name")], here, step);
  }

  toggle() {
    const isHidden = this.svg.parentElement.classList.toggle("bare");
    return !isHidden;
  }

  // Joins the boxes of a reply with it: they light up together.
  rest(key, boxes) {
    this.reply = { key, boxes };
    this.drawTags();
  }

  // Puts a tag to a corner of every labeled box: the first corner that no other tag is near. Boxes that were drawn anew
  // belong to the reply and light up as those before them. Boxes that are no findings come last: they displace no tag.
  drawTags() {
    for (const rect of this.svg.querySelectorAll("#found rect[data-tracking]")) {
      if (this.reply.boxes.includes(rect.dataset.tracking)) rect.dataset.also = this.reply.key;
      else delete rect.dataset.also;
    }
    if (this.lit) for (const part of parts(this.lit)) part.classList.add("lit");
    const taken = [];
    const rects = ["rect[data-number]", "rect.searched"].flatMap((kind) => [...this.svg.querySelectorAll(kind)]);
    const tags = rects.map((rect) => {
      const { left, top, right, bottom } = this.drawnEdges(rect);
      const corners = [["left", "top"], ["right", "top"], ["left", "bottom"], ["right", "bottom"]].map((names) => ({
        names,
        x: 100 * (names[0] === "left" ? left : right),
        y: 100 * (names[1] === "top" ? top : bottom),
      }));
      const isFree = ({ x, y }) => taken.every((other) => Math.hypot(other.x - x, other.y - y) > NEAR);
      const corner = corners.find(isFree) ?? corners[0];
      taken.push(corner);
      const made = tag(rect);
      this.corners.set(made, [corner, ...corners.filter((other) => other !== corner)]);
      put(made, corner);
      return made;
    });
    this.tags.replaceChildren(...tags);
    this.settle();
  }

  // The edges of a box as they are seen, in parts of what is drawn of the film.
  drawnEdges(rect) {
    const { left, top, right, bottom } = edges(rect);
    const [one, other] = [this.viewport.toDrawn(left, top), this.viewport.toDrawn(right, bottom)];
    return { left: Math.min(one.x, other.x), top: Math.min(one.y, other.y), right: Math.max(one.x, other.x), bottom: Math.max(one.y, other.y) };
  }

  // Puts each tag that is written out to the corner of its box where it covers the least of other tags.
  settle() {
    const tags = [...this.tags.children];
    for (const each of tags) put(each, this.corners.get(each)[0]);
    const isLong = (each) => each.matches(".lit, .pinned");
    const taken = tags.filter((each) => !isLong(each)).map((each) => each.getBoundingClientRect());
    taken.push(...outside(this.viewport.frame.getBoundingClientRect()));
    for (const each of tags.filter(isLong)) {
      const choices = this.corners.get(each).map((corner) => {
        put(each, corner);
        const place = each.getBoundingClientRect();
        return { corner, covered: taken.reduce((sum, other) => sum + shared(place, other), 0) };
      });
      const best = choices.reduce((least, choice) => (choice.covered < least.covered ? choice : least));
      put(each, best.corner);
      moveInside(each, this.viewport.frame.getBoundingClientRect());
      taken.push(each.getBoundingClientRect());
    }
  }
}

// What lies beside a rectangle: to the left, above, to the right and below.
function outside({ left, top, right, bottom }) {
  const far = 1e5;
  return [
    { left: -far, top: -far, right: left, bottom: far },
    { left: -far, top: -far, right: far, bottom: top },
    { left: right, top: -far, right: far, bottom: far },
    { left: -far, top: bottom, right: far, bottom: far },
  ];
}

// The area that two rectangles have in common.
function shared(one, other) {
  const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
  const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
  return Math.max(wide, 0) * Math.max(high, 0);
}

function put(made, { names, x, y }) {
  for (const name of ["left", "top", "right", "bottom"]) made.classList.toggle(name, names.includes(name));
  made.style.marginLeft = "";
  made.style.left = `${x}%`;
  made.style.top = `${y}%`;
}

// Moves a tag sideways until no end of it is hidden; one that is wider than the frame wraps.
function moveInside(made, frame) {
  made.style.maxWidth = `${frame.width}px`;
  const { left, right } = made.getBoundingClientRect();
  made.style.marginLeft = `${Math.max(frame.left - left, 0) + Math.min(frame.right - right, 0)}px`;
}

function tag(rect) {
  const made = document.createElement("span");
  const state = ["present", "review", "located", "searched"].find((kind) => rect.classList.contains(kind)) ?? "";
  made.className = `tag ${state}`;
  for (const kind of ["lit", "pinned", "asked"]) made.classList.toggle(kind, rect.classList.contains(kind));
  made.dataset.key = rect.dataset.key;
  if (rect.dataset.also) made.dataset.also = rect.dataset.also;
  const label = document.createElement("span");
  label.textContent = ` ${rect.dataset.label}`;
  made.append(rect.dataset.number ?? "", label);
  return made;
}
