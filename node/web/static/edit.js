// The box of a correction while it is moved or drawn: the bar that says what it is for, saves it, or gives it up.

const SLIVER = 0.01; // of the longer side of the film: a box that is thinner holds no finding

export class BoxEditing {
  // drawn: the box that is drawn on the film; setTool: sets what a drag does; `closed` is called at the end of each box
  constructor(frame, drawn, setTool) {
    Object.assign(this, { frame, drawn, setTool, task: null, closed() {} });
    this.bar = document.getElementById("editing");
    if (!this.bar) return;
    this.alert = this.bar.querySelector(".alert");
    this.where = document.getElementById("editing-where");
    this.bar.querySelector(".save").addEventListener("click", () => this.save());
    this.bar.querySelector(".cancel").addEventListener("click", () => this.close());
    this.bar.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.close();
    });
  }

  get isOpen() {
    return this.task !== null;
  }

  // title: what is done; box: where it begins, null if it is still to be drawn; isNew: whether a drag beside the box
  // draws another; save: stores the box; opener: gets the focus back
  open({ title, box, isNew, save, opener }) {
    this.close();
    this.task = { isNew, save, opener };
    document.getElementById("editing-title").textContent = title;
    this.alert.textContent = "";
    this.bar.hidden = false;
    this.frame.classList.add("correcting"); // hides what was asked
    this.drawn.isHeld = true;
    if (box) {
      this.drawn.put(box);
      this.drawn.viewport.reveal(box);
    } else this.where.textContent = "Drag a box around the finding, or press b for one.";
    this.setTool("box");
    this.bar.scrollIntoView({ block: "nearest" });
    this.frame.focus({ preventScroll: true });
  }

  // What a drag from a place does: one beside a box that is moved moves the film.
  toolAt(clientX, clientY) {
    return this.task.isNew || this.drawn.gripAt(clientX, clientY) ? "box" : "pan";
  }

  onDrawn(box) {
    if (!box) return this.close();
    const [left, top, right, bottom] = [box.left, box.top, box.right, box.bottom].map(Math.round);
    clearTimeout(this.telling);
    const text = `Columns ${left} to ${right}, rows ${top} to ${bottom}.`;
    this.telling = setTimeout(() => (this.where.textContent = text), 150);
  }

  async save() {
    const { task } = this;
    const { box, viewport } = this.drawn;
    if (!box || Math.min(box.right - box.left, box.bottom - box.top) < SLIVER * Math.max(viewport.columns, viewport.rows)) {
      this.alert.textContent = box ? "This box is too thin: draw it around the finding." : "Draw the box first.";
      return;
    }
    const { left, top, right, bottom } = box;
    const button = this.bar.querySelector(".save");
    button.disabled = true;
    this.alert.textContent = "";
    try {
      await task.save([left, top, right, bottom]);
      if (this.task === task) this.close();
    } catch (error) {
      this.alert.textContent = error.message;
    }
    button.disabled = false;
  }

  close() {
    const { task } = this;
    if (!task) return;
    this.task = null;
    clearTimeout(this.telling);
    this.where.textContent = "";
    this.bar.hidden = true;
    this.frame.classList.remove("correcting");
    this.drawn.isHeld = false;
    this.drawn.clear();
    if (task.opener.isConnected) task.opener.focus({ preventScroll: true });
    this.closed();
  }
}
