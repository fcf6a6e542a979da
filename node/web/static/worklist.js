// The worklist: keeps itself up to date, and is used by keys.

import { page, retries } from "./api.js";
import { onKeys } from "./keys.js";
import { move, openOnClick, row } from "./lines.js";
import { watch } from "./live.js";

const alert = document.getElementById("alert");
const live = document.getElementById("live");
const table = () => document.getElementById("worklist");

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

openOnClick();
document.querySelector(".filter").addEventListener("change", (event) => {
  if (event.target.matches("select")) event.target.form.requestSubmit();
});

retries(document.getElementById("main"), alert);
watch(refresh, { said: (isLive) => said(isLive ? "Live" : "Not live: the node does not answer") });
