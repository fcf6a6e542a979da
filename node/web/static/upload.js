// The page on which a film in no study is chosen: sends the file, and goes to the page that shows it.

import { send } from "./api.js";

const MIB = 2 ** 20;
const form = document.getElementById("upload");
const input = document.getElementById("file");
const state = document.getElementById("upload-state");
const alert = document.getElementById("upload-alert");
const most = Number(form.dataset.mostMib);

// The kind of a file by its first bytes: names are not to be trusted, and browsers know no DICOM.
async function kindOf(file) {
  const start = new Uint8Array(await file.slice(0, 8).arrayBuffer());
  const begins = (...bytes) => bytes.every((byte, place) => start[place] === byte);
  if (begins(0x89, 0x50, 0x4e, 0x47)) return "image/png";
  return begins(0xff, 0xd8, 0xff) ? "image/jpeg" : "application/dicom";
}

async function look(file) {
  if (form.getAttribute("aria-busy") === "true") return;
  alert.textContent = "";
  if (file.size > most * MIB) {
    alert.textContent = `This file has ${Math.ceil(file.size / MIB)} MiB. The node takes at most ${most} MiB.`;
    return;
  }
  form.setAttribute("aria-busy", "true");
  input.disabled = true;
  state.textContent = `${file.name} is sent to the node and read. This takes some seconds.`;
  try {
    const { id } = await send("/api/v1/looks", file, await kindOf(file));
    location.assign(`/upload/${id}`);
    return;
  } catch (error) {
    const hint = error.status === 422 ? " Choose a frontal chest X-ray as DICOM, PNG or JPEG." : "";
    alert.textContent = `${file.name}: ${error.message}.${hint}`.replace("..", ".");
    state.textContent = "";
  }
  form.removeAttribute("aria-busy");
  input.disabled = false;
  input.value = "";
  input.focus();
}

input.addEventListener("change", () => input.files.length && look(input.files[0]));

// A file that is dropped anywhere is taken; the browser would leave the page and show it.
for (const kind of ["dragenter", "dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    form.classList.toggle("over", kind === "dragenter" || kind === "dragover");
    if (kind !== "drop") return;
    const { files } = event.dataTransfer;
    if (files.length === 1) look(files[0]);
    else alert.textContent = "Drop one file at a time.";
  });
}
window.addEventListener("pageshow", () => {
  form.removeAttribute("aria-busy"); // a page that the browser kept, and shows again
  input.disabled = false;
  state.textContent = "";
});
