// The page of an administrator: asks a destination whether it answers.

import { post } from "./api.js";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-echo]");
  if (!button) return;
  const told = button.parentElement.querySelector("output");
  button.disabled = true;
  told.textContent = "Asked ...";
  try {
    const lines = await post(`/api/v1/destinations/${encodeURIComponent(button.dataset.echo)}/echo`);
    told.replaceChildren(...lines.map(lineOf));
  } catch (error) {
    told.textContent = error.message;
  } finally {
    button.disabled = false;
  }
});

function lineOf(line) {
  const made = document.createElement("p");
  made.className = line.state;
  made.textContent = `${line.state}: ${line.message}`;
  return made;
}
