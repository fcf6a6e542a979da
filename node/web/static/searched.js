// The layer of boxes that are no findings: where the network looked for what it does not report. It is off at every load.

const byId = (id) => document.getElementById(id);

export function offerSearched() {
  const choice = byId("show-searched");
  if (!choice) return; // the network looked for nothing else, or the film was read before the node kept where
  const show = () => {
    for (const part of [byId("searched"), byId("searched-legend")]) part.toggleAttribute("hidden", !choice.checked);
  };
  choice.closest("label").hidden = false;
  choice.addEventListener("change", show);
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return; // not kept by the browser as it was left
    choice.checked = false;
    show();
  });
}
