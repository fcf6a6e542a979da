// The box that a person draws to ask about: by dragging, or by keys.

import { place } from "./boxes.js";
import { clamp } from "./viewport.js";

const SMALLEST = 4; // pixels of the film

export class Drawn {
  // changed: is told the box in pixels of the film, null when there is none
  constructor(rect, viewport, changed) {
    Object.assign(this, { rect, viewport, changed, box: null });
  }

  begin(clientX, clientY) {
    this.start = this.viewport.toFilm(clientX, clientY);
  }

  draw(clientX, clientY) {
    const end = this.viewport.toFilm(clientX, clientY);
    const [left, right] = [this.start.column, end.column].sort((a, b) => a - b);
    const [top, bottom] = [this.start.row, end.row].sort((a, b) => a - b);
    if (right - left >= SMALLEST && bottom - top >= SMALLEST) this.put({ left, top, right, bottom });
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
    let { left, top, right, bottom } = this.box;
    if (isSize) {
      right = clamp(right + x * unit, left + SMALLEST, columns);
      bottom = clamp(bottom + y * unit, top + SMALLEST, rows);
    } else {
      const wide = clamp(x * unit, -left, columns - right);
      const high = clamp(y * unit, -top, rows - bottom);
      [left, right, top, bottom] = [left + wide, right + wide, top + high, bottom + high];
    }
    this.put({ left, top, right, bottom });
    return true;
  }

  put(box) {
    this.box = box;
    this.rect.toggleAttribute("hidden", !box);
    if (box) place(this.rect, box);
    this.changed(box);
  }

  clear() {
    this.put(null);
  }
}
