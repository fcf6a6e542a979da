// Keys of a page: a table of actions by key, and the dialog that lists them.

const TYPED = "input, select, textarea, [contenteditable]";

// An action that returns false leaves the key to the browser.
export function onKeys(actions) {
  const dialog = document.getElementById("keys");
  const open = () => dialog.showModal();
  for (const button of document.querySelectorAll('[data-opens="keys"]')) button.addEventListener("click", open);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.matches(TYPED)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = event.key === "?" ? open : actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (action && action(event) !== false) event.preventDefault();
  });
}
