// The window of a film: shown at once by a filter of the browser, and a moment later by the node, from the stored values.

import { picture } from "./api.js";
import { clamp } from "./viewport.js";

const PAUSE = 120; // milliseconds without a change before the node is asked

export class GrayWindow {
  // said: is told the window; arrived: gets columns and rows of each picture; failed: gets a text
  constructor(path, image, filter, { said, arrived, failed }) {
    Object.assign(this, { path, image, said, arrived, failed });
    this.functions = [...filter.querySelectorAll("feFuncR, feFuncG, feFuncB")];
    this.shown = null;
    this.wanted = { center: null, width: null, inverted: false };
  }

  // Changes the window by shares of the range of values: positive is darker, and flatter.
  change(darker, flatter) {
    if (!this.shown) return;
    const [low, high] = this.shown.values;
    const range = Math.max(high - low, 1);
    const { center, width } = this.current;
    const sign = this.isDarkHigh ? -1 : 1;
    this.wanted.width = clamp(width + flatter * range, range / 500, range * 4);
    this.wanted.center = clamp(center + sign * darker * range, low - range, high + range);
    this.update();
  }

  invert() {
    this.wanted.inverted = !this.wanted.inverted;
    this.update();
    return this.wanted.inverted;
  }

  reset() {
    this.wanted = { center: null, width: null, inverted: false };
    this.load();
  }

  get current() {
    const { center, width } = this.wanted.center === null ? this.shown : this.wanted;
    return { center, width };
  }

  // Whether high values are dark in the window that is wanted.
  get isDarkHigh() {
    return this.shown.isDarkHigh !== (this.wanted.inverted !== this.shown.inverted);
  }

  update() {
    this.preview();
    clearTimeout(this.timer);
    if (this.shown?.isOnly) return; // the node has no other picture
    this.timer = setTimeout(() => this.load(), PAUSE);
  }

  preview() {
    if (!this.shown) return;
    const { center, width } = this.current;
    const after = (gray) => {
      const share = this.shown.isDarkHigh ? 1 - gray : gray;
      const value = this.shown.center + (share - 0.5) * this.shown.width;
      const bright = (value - center) / width + 0.5;
      return this.isDarkHigh ? 1 - bright : bright;
    };
    for (const each of this.functions) {
      each.setAttribute("slope", after(1) - after(0));
      each.setAttribute("intercept", after(0));
    }
    this.image.style.filter = "url(#gray)";
    this.tell();
  }

  async load() {
    clearTimeout(this.timer);
    if (this.shown?.isOnly) return this.preview();
    this.request?.abort();
    const request = (this.request = new AbortController());
    const wanted = { ...this.wanted };
    this.image.setAttribute("aria-busy", "true");
    try {
      const { content, ...shown } = await picture(this.path, wanted, request.signal);
      const address = URL.createObjectURL(content);
      const next = new Image();
      next.src = address;
      await next.decode();
      if (this.request !== request) return URL.revokeObjectURL(address);
      this.shown = { ...shown, inverted: wanted.inverted };
      this.put(address, next);
    } catch (error) {
      if (this.request === request && error.name !== "AbortError") this.failed(error.message);
    }
    if (this.request === request) this.image.removeAttribute("aria-busy");
  }

  put(address, { naturalWidth, naturalHeight }) {
    const before = this.image.src;
    this.image.src = address;
    this.image.style.filter = "";
    if (before) URL.revokeObjectURL(before);
    this.arrived(naturalWidth, naturalHeight);
    this.failed("");
    this.tell();
  }

  tell() {
    const { center, width } = this.current;
    this.said(center, width);
  }
}
