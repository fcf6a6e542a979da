// Shows a film in a frame: zoom and place. All coordinates of what lies on the film are its pixels, which need not be
// square: the scale is that of their width, and their height is drawn by the aspect.

const LARGEST = 16; // screen pixels to a pixel of the film
const STEP = 1.25;

export class Viewport {
  constructor(frame, stage, said) {
    Object.assign(this, { frame, stage, said, aspect: Number(frame.dataset.aspect) || 1, columns: 0, rows: 0, scale: 1, x: 0, y: 0, isFitted: true });
    new ResizeObserver(() => (this.isFitted ? this.fit() : this.apply())).observe(frame);
  }

  setSize(columns, rows) {
    if (columns === this.columns && rows === this.rows) return;
    Object.assign(this, { columns, rows });
    this.fit();
  }

  get fitting() {
    const { clientWidth, clientHeight } = this.frame;
    return Math.min(clientWidth / this.columns, clientHeight / this.rows / this.aspect) || 1;
  }

  fit() {
    if (!this.columns) return;
    this.isFitted = true;
    this.scale = this.fitting;
    this.center(this.columns / 2, this.rows / 2);
  }

  actual() {
    this.zoom(1 / devicePixelRatio / this.scale);
  }

  // Puts a place of the film into the middle of the frame.
  center(column, row) {
    this.x = this.frame.clientWidth / 2 - column * this.scale;
    this.y = this.frame.clientHeight / 2 - row * this.scale * this.aspect;
    this.apply();
  }

  // Zooms so that a place of the frame stays where it is; its middle if none is named.
  zoom(factor, at = { x: this.frame.clientWidth / 2, y: this.frame.clientHeight / 2 }) {
    const wanted = this.scale * factor;
    const scale = Math.min(Math.max(wanted, this.fitting / 2), LARGEST);
    this.x = at.x - ((at.x - this.x) * scale) / this.scale;
    this.y = at.y - ((at.y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.isFitted = false;
    this.apply();
  }

  step(direction, at) {
    this.zoom(direction > 0 ? STEP : 1 / STEP, at);
  }

  pan(x, y) {
    this.x += x;
    this.y += y;
    this.isFitted = false;
    this.apply();
  }

  // A place of the screen in pixels of the film, no further out than its edges.
  toFilm(clientX, clientY) {
    const { left, top } = this.frame.getBoundingClientRect();
    const column = (clientX - left - this.x) / this.scale;
    const row = (clientY - top - this.y) / this.scale / this.aspect;
    return { column: clamp(column, 0, this.columns), row: clamp(row, 0, this.rows) };
  }

  // The part of the film that is seen.
  get seen() {
    const { left, top } = this.frame.getBoundingClientRect();
    const start = this.toFilm(left, top);
    const end = this.toFilm(left + this.frame.clientWidth, top + this.frame.clientHeight);
    return { left: start.column, top: start.row, right: end.column, bottom: end.row };
  }

  // Moves the film so that a box of it is seen.
  reveal({ left, top, right, bottom }) {
    const { seen } = this;
    const isInside = left >= seen.left && right <= seen.right && top >= seen.top && bottom <= seen.bottom;
    if (!isInside) this.center((left + right) / 2, (top + bottom) / 2);
  }

  apply() {
    const width = this.columns * this.scale;
    const height = this.rows * this.scale * this.aspect;
    // A quarter of the frame always shows film.
    const rest = (side) => side / 4;
    const { clientWidth, clientHeight } = this.frame;
    this.x = clamp(this.x, Math.min(rest(clientWidth) - width, 0), Math.max(clientWidth - rest(clientWidth), 0));
    this.y = clamp(this.y, Math.min(rest(clientHeight) - height, 0), Math.max(clientHeight - rest(clientHeight), 0));
    const { style } = this.stage;
    style.width = `${width}px`;
    style.height = `${height}px`;
    style.transform = `translate(${this.x}px, ${this.y}px)`;
    this.said(this.scale * devicePixelRatio);
  }
}

export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
