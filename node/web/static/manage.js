// Reading a study again, or deleting it: sends the reason, and what the page said of the study.

import { post } from "./api.js";

const alert = document.getElementById("alert");

for (const form of document.querySelectorAll("form.manage")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { path, then, films, undelivered } = form.dataset;
    const content = { reason: form.elements.reason.value };
    if (films !== undefined) Object.assign(content, { films: Number(films), undelivered: Number(undelivered) });
    form.querySelector("button").disabled = true;
    alert.textContent = "";
    try {
      await post(path, content);
      location.assign(then);
    } catch (error) {
      alert.textContent = error.message;
      form.querySelector("button").disabled = false;
    }
  });
}
