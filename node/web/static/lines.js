// The lines of a table, each with one link that opens it.

const links = () => [...document.querySelectorAll("#worklist a.open")];

export const row = () => document.activeElement?.closest?.("tr[data-uid]");

export function move(step) {
  focusNext(links(), row()?.querySelector("a.open"), step);
}

// Focuses the element after one of several, or the one before it.
export function focusNext(all, one, step) {
  const here = all.indexOf(one);
  const next = here < 0 ? (step > 0 ? 0 : all.length - 1) : here + step;
  all[Math.min(Math.max(next, 0), all.length - 1)]?.focus();
}

// A click anywhere on a line opens it, but a selection of text or a button does not.
export function openOnClick() {
  document.getElementById("main").addEventListener("click", (event) => {
    const line = event.target.closest("tr[data-uid]");
    if (line && !event.target.closest("a, button") && !String(getSelection())) line.querySelector("a.open").click();
  });
}
