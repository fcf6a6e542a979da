// Shows a film in a frame: zoom, place, and how it is turned. All coordinates of what lies on the film are its pixels,
// which need not be square: the scale is that of their width, and their height is drawn by the aspect. A film is mirrored
// first, from left to right, and then turned clockwise by quarters. That changes the view alone, and is kept nowhere.

const LARGEST = 16; // screen pixels to a pixel of the film
const STEP = 1.25;

export class Viewport {
  constructor(frame, stage, said) {
    Object.assign(this, { frame, stage, said, aspect: Number(frame.dataset.aspect) || 1, columns: 0, rows: 0, scale: 1, x: 0, y: 0, isFitted: true, quarters: 0, isMirrored: false, turned() {} });
    new ResizeObserver(() => (this.isFitted ? this.fit() : this.apply())).observe(frame);
  }

  setSize(columns, rows) {
    if (columns === this.columns && rows === this.rows) return;
    Object.assign(this, { columns, rows });
    this.fit();
  }

  get fitting() {
    const { clientWidth, clientHeight } = this.frame;
    const [width, height] = this.isLying ? [this.rows * this.aspect, this.columns] : [this.columns, this.rows * this.aspect];
    return Math.min(clientWidth / width, clientHeight / height) || 1;
  }

  // Whether the rows of the film stand upright on the screen.
  get isLying() {
    return this.quarters % 2 === 1;
  }

  // Turns what is seen by a quarter, clockwise.
  turn() {
    this.orient((this.quarters + 1) % 4, this.isMirrored);
  }

  // Mirrors what is seen from left to right, however it is turned.
  mirror() {
    this.orient((4 - this.quarters) % 4, !this.isMirrored);
  }

  orient(quarters, isMirrored) {
    Object.assign(this, { quarters, isMirrored });
    this.fit();
    this.turned();
  }

  // Where a place of the film is drawn, in parts of what is drawn of it.
  toDrawn(column, row) {
    const [u, v] = [this.isMirrored ? 1 - column / this.columns : column / this.columns, row / this.rows];
    return [{ x: u, y: v }, { x: 1 - v, y: u }, { x: 1 - u, y: 1 - v }, { x: v, y: 1 - u }][this.quarters];
  }

  // The other way round.
  fromDrawn({ x, y }) {
    const [u, v] = [[x, y], [y, 1 - x], [1 - x, 1 - y], [1 - y, x]][this.quarters];
    return { column: (this.isMirrored ? 1 - u : u) * this.columns, row: v * this.rows };
  }

  // A step on the screen as a step on the film: which of its axes it follows, and which way.
  stepOnFilm(x, y) {
    const [u, v] = [[x, y], [y, -x], [-x, -y], [-y, x]][this.quarters];
    return [this.isMirrored ? -u : u, v];
  }

  // Width and height of what is drawn, in pixels of the screen.
  get drawnSize() {
    const [width, height] = [this.columns * this.scale, this.rows * this.scale * this.aspect];
    return this.isLying ? [height, width] : [width, height];
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
    const { x, y } = this.toDrawn(column, row);
    const [width, height] = this.drawnSize;
    this.x = this.frame.clientWidth / 2 - x * width;
    this.y = this.frame.clientHeight / 2 - y * height;
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
    const [width, height] = this.drawnSize;
    const { column, row } = this.fromDrawn({ x: (clientX - left - this.x) / width, y: (clientY - top - this.y) / height });
    return { column: clamp(column, 0, this.columns), row: clamp(row, 0, this.rows) };
  }

  // The part of the film that is seen.
  get seen() {
    const { left, top } = this.frame.getBoundingClientRect();
    const start = this.toFilm(left, top);
    const end = this.toFilm(left + this.frame.clientWidth, top + this.frame.clientHeight);
    const [columns, rows] = [[start.column, end.column], [start.row, end.row]].map((ends) => ends.sort((a, b) => a - b));
    return { left: columns[0], top: rows[0], right: columns[1], bottom: rows[1] };
  }

  // Moves the film so that a box of it is seen.
  reveal({ left, top, right, bottom }) {
    const { seen } = this;
    const isInside = left >= seen.left && right <= seen.right && top >= seen.top && bottom <= seen.bottom;
    if (!isInside) this.center((left + right) / 2, (top + bottom) / 2);
  }

  apply() {
    const [width, height] = this.drawnSize;
    // A quarter of the frame always shows film.
    const rest = (side) => side / 4;
    const { clientWidth, clientHeight } = this.frame;
    this.x = clamp(this.x, Math.min(rest(clientWidth) - width, 0), Math.max(clientWidth - rest(clientWidth), 0));
    this.y = clamp(this.y, Math.min(rest(clientHeight) - height, 0), Math.max(clientHeight - rest(clientHeight), 0));
    const { style } = this.stage;
    style.width = `${width}px`;
    style.height = `${height}px`;
    style.transform = `translate(${this.x}px, ${this.y}px)`;
    for (const layer of this.stage.querySelectorAll("#picture, #boxes")) this.lay(layer, width, height);
    this.said(this.scale * devicePixelRatio);
  }

  // The film and its boxes lie in the stage as they are stored, and are turned there; tags stand upright.
  lay(layer, width, height) {
    const [start, right, down] = [[0, 0], [1, 0], [0, 1]].map(([u, v]) => this.toDrawn(u * this.columns, v * this.rows));
    const [wide, high] = this.isLying ? [height, width] : [width, height];
    const by = (to, name, length, side) => ((to[name] - start[name]) * length) / side;
    const matrix = [by(right, "x", width, wide), by(right, "y", height, wide), by(down, "x", width, high), by(down, "y", height, high)];
    Object.assign(layer.style, { width: `${wide}px`, height: `${high}px` });
    layer.style.transform = `matrix(${matrix.join(", ")}, ${start.x * width}, ${start.y * height})`;
  }
}

export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
