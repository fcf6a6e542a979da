// What mouse, pen and fingers do on the film: wheel and pinch zoom, a drag does what the tool or the button says.

const MIDDLE = 1;
const RIGHT = 2;

// tool: returns pan, gray or box for a place of the screen; space: whether the space bar is held; on: pan, zoom, gray, begin, draw and end
export function pointers(frame, { tool, space, on }) {
  const down = new Map();
  let dragged = null;

  const place = (event) => {
    const { left, top } = frame.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  };

  function kindOf(event) {
    if (event.button === MIDDLE || space()) return "pan";
    return event.button === RIGHT ? "gray" : tool(event.clientX, event.clientY);
  }

  frame.addEventListener("pointerdown", (event) => {
    frame.focus({ preventScroll: true });
    if (event.button === MIDDLE) event.preventDefault(); // no scrolling by the middle button
    frame.setPointerCapture(event.pointerId);
    down.set(event.pointerId, place(event));
    if (down.size > 1 && dragged === "box") on.end(true);
    dragged = down.size > 1 ? "pinch" : kindOf(event);
    if (dragged === "box") on.begin(event.clientX, event.clientY);
  });

  frame.addEventListener("pointermove", (event) => {
    const before = down.get(event.pointerId);
    if (!before) return;
    const now = place(event);
    const [x, y] = [now.x - before.x, now.y - before.y];
    if (dragged === "pan") on.pan(x, y);
    if (dragged === "gray") on.gray(y / frame.clientHeight, x / frame.clientWidth);
    if (dragged === "box") on.draw(event.clientX, event.clientY);
    if (dragged === "pinch") pinch(event.pointerId, before, now);
    down.set(event.pointerId, now);
  });

  function pinch(id, before, now) {
    const other = [...down].find(([each]) => each !== id)?.[1];
    if (!other) return;
    const apart = (point) => Math.max(Math.hypot(point.x - other.x, point.y - other.y), 1);
    on.zoom(apart(now) / apart(before), { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 });
    on.pan((now.x - before.x) / 2, (now.y - before.y) / 2);
  }

  const up = (event) => {
    if (!down.delete(event.pointerId)) return;
    if (dragged === "box") on.end(event.type === "pointercancel");
    if (!down.size || dragged !== "pinch") dragged = null;
  };
  frame.addEventListener("pointerup", up);
  frame.addEventListener("pointercancel", up);
  frame.addEventListener("contextmenu", (event) => event.preventDefault());
  frame.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      on.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), place(event));
    },
    { passive: false },
  );
}
