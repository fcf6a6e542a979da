// The worklist: keeps itself up to date, and is used by keys.

import { page, retries } from "./api.js";
import { onKeys } from "./keys.js";
import { watch } from "./live.js";

const alert = document.getElementById("alert");
const live = document.getElementById("live");
const table = () => document.getElementById("worklist");
const links = () => [...table().querySelectorAll("a.open")];
const row = () => document.activeElement?.closest?.("tr[data-uid]");

let isBusy = false;
let isStale = false;

async function refresh() {
  isStale = isBusy;
  if (isBusy) return;
  isBusy = true;
  try {
    const fresh = (await page()).getElementById("worklist");
    if (fresh) put(document.adoptNode(fresh));
  } catch {
    // The stream says that the node is away; the next event tries again.
  }
  isBusy = false;
  if (isStale) refresh();
}

function put(fresh) {
  const uid = row()?.dataset.uid;
  const before = table().dataset.total;
  const isOnButton = document.activeElement?.matches("[data-retry]");
  table().replaceWith(fresh);
  const same = uid && fresh.querySelector(`tr[data-uid="${uid}"]`);
  ((isOnButton && same?.querySelector("[data-retry]")) || same?.querySelector("a.open"))?.focus();
  if (fresh.dataset.total !== before) said(`Live: ${fresh.dataset.total} ${fresh.dataset.total === "1" ? "study" : "studies"}`);
}

function said(text) {
  live.textContent = text;
}

function move(step) {
  const all = links();
  const here = all.indexOf(row()?.querySelector("a.open"));
  const next = here < 0 ? (step > 0 ? 0 : all.length - 1) : here + step;
  all[Math.min(Math.max(next, 0), all.length - 1)]?.focus();
}

function follow(rel) {
  document.querySelector(`a[rel="${rel}"]`)?.click();
}

onKeys({
  j: () => move(1),
  ArrowDown: () => move(1),
  k: () => move(-1),
  ArrowUp: () => move(-1),
  r: () => row()?.querySelector("[data-retry]")?.click(),
  n: () => follow("next"),
  p: () => follow("prev"),
  "/": () => document.getElementById("filter").focus(),
});

// A click anywhere on a line opens its study, but a selection of text or a button does not.
document.getElementById("main").addEventListener("click", (event) => {
  const line = event.target.closest("tr[data-uid]");
  if (line && !event.target.closest("a, button") && !String(getSelection())) line.querySelector("a.open").click();
});
document.querySelector(".filter select").addEventListener("change", (event) => event.target.form.requestSubmit());

retries(document.getElementById("main"), alert);
watch(refresh, (isLive) => said(isLive ? "Live" : "Not live: the node does not answer"));
