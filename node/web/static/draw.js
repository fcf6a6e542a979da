// The box that a person draws to ask about or to correct: by dragging, or by keys.

import { place } from "./boxes.js";
import { clamp } from "./viewport.js";

const SMALLEST = 4; // pixels of the film
const NEAR = matchMedia("(pointer: coarse)").matches ? 22 : 12; // pixels of the screen from an edge that is held

export class Drawn {
  // changed: is told the box in pixels of the film, null when there is none
  constructor(rect, viewport, changed) {
    Object.assign(this, { rect, viewport, changed, box: null, isHeld: false }); // held: a drag on it or its edges moves them
    this.grips = document.getElementById("grips");
  }

  // The edges of the box that a drag from a place moves; null outside the box, or if it cannot be held.
  gripAt(clientX, clientY) {
    if (!this.isHeld || !this.box) return null;
    const { column, row } = this.viewport.toFilm(clientX, clientY);
    const { left, top, right, bottom } = this.box;
    const near = NEAR / this.viewport.scale;
    const nearRows = near / this.viewport.aspect;
    if (column < left - near || column > right + near || row < top - nearRows || row > bottom + nearRows) return null;
    // Of a small box, an edge is near in its outer third only.
    const across = Math.min(near, (right - left) / 3);
    const along = Math.min(nearRows, (bottom - top) / 3);
    const grip = { left: column < left + across, top: row < top + along, right: column > right - across, bottom: row > bottom - along };
    return Object.values(grip).some(Boolean) ? grip : { left: true, top: true, right: true, bottom: true };
  }

  begin(clientX, clientY) {
    this.start = this.viewport.toFilm(clientX, clientY);
    this.grip = this.gripAt(clientX, clientY);
    this.before = this.box;
  }

  draw(clientX, clientY) {
    const end = this.viewport.toFilm(clientX, clientY);
    if (this.grip) return this.pull(end.column - this.start.column, end.row - this.start.row);
    const [left, right] = [this.start.column, end.column].sort((a, b) => a - b);
    const [top, bottom] = [this.start.row, end.row].sort((a, b) => a - b);
    if (right - left >= SMALLEST && bottom - top >= SMALLEST) this.put({ left, top, right, bottom });
  }

  // Moves the edges that are held from where they were; all four keep the size of the box.
  pull(x, y) {
    const { columns, rows } = this.viewport;
    const { left, top, right, bottom } = this.before;
    if (Object.values(this.grip).every(Boolean)) return this.put(this.moved(this.before, x, y));
    this.put({
      left: this.grip.left ? clamp(left + x, 0, right - SMALLEST) : left,
      top: this.grip.top ? clamp(top + y, 0, bottom - SMALLEST) : top,
      right: this.grip.right ? clamp(right + x, left + SMALLEST, columns) : right,
      bottom: this.grip.bottom ? clamp(bottom + y, top + SMALLEST, rows) : bottom,
    });
  }

  // A box that is moved, with its size, as far as the film reaches.
  moved({ left, top, right, bottom }, x, y) {
    const { columns, rows } = this.viewport;
    const [wide, high] = [clamp(x, -left, columns - right), clamp(y, -top, rows - bottom)];
    return { left: left + wide, top: top + high, right: right + wide, bottom: bottom + high };
  }

  // Puts a box into the middle of what is seen of the film.
  open() {
    if (this.box) return;
    const { left, top, right, bottom } = this.viewport.seen;
    const [wide, high] = [(right - left) / 3, (bottom - top) / 3];
    this.put({ left: left + wide, top: top + high, right: right - wide, bottom: bottom - high });
  }

  // Moves the box, or its right lower corner, by steps of a fiftieth of what is seen.
  step(x, y, isSize) {
    if (!this.box) return false;
    const { columns, rows, seen } = this.viewport;
    const unit = Math.max((seen.right - seen.left) / 50, 1);
    if (isSize && this.viewport.isLying) [x, y] = [y, x];
    if (!isSize) [x, y] = this.viewport.stepOnFilm(x, y);
    const { left, top, right, bottom } = this.box;
    const larger = {
      left,
      top,
      right: clamp(right + x * unit, left + SMALLEST, columns),
      bottom: clamp(bottom + y * unit, top + SMALLEST, rows),
    };
    this.put(isSize ? larger : this.moved(this.box, x * unit, y * unit));
    return true;
  }

  put(box) {
    this.box = box;
    this.rect.toggleAttribute("hidden", !box);
    if (box) place(this.rect, box);
    this.grips.toggleAttribute("hidden", !box || !this.isHeld);
    if (box && this.isHeld) this.grips.setAttribute("d", dots(box));
    this.changed(box);
  }

  clear() {
    this.put(null);
  }
}

// Eight points on the lines of a box, drawn by round ends of lines without length.
function dots({ left, top, right, bottom }) {
  const [column, row] = [(left + right) / 2, (top + bottom) / 2];
  const points = [[left, top], [column, top], [right, top], [right, row], [right, bottom], [column, bottom], [left, bottom], [left, row]];
  return points.map(([x, y]) => `M${x} ${y}h0`).join("");
}
