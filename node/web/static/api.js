// Talks to the interface for programs; every failure becomes an Error whose message a person can read.

const NO_CONTENT = 204;
const token = document.querySelector('meta[name="csrf-token"]')?.content;

async function failure(answer) {
  try {
    const problem = await answer.json();
    return problem.detail || problem.title;
  } catch {
    return `The node answered with status ${answer.status}.`;
  }
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The node does not answer. Is it running?");
  }
  if (!answer.ok) throw Object.assign(new Error(await failure(answer)), { status: answer.status });
  return answer;
}

export async function get(path) {
  return (await ask(path)).json();
}

export async function post(path, content) {
  return content === undefined ? send(path) : send(path, JSON.stringify(content), "application/json");
}

// Posts a body as it is.
export async function send(path, body, type) {
  const headers = { "X-Requested-From": "page" };
  if (token) headers["X-CSRF-Token"] = token;
  if (type) headers["Content-Type"] = type;
  const answer = await ask(path, { method: "POST", headers, body });
  return answer.status === NO_CONTENT ? null : answer.json();
}

// Removes what a path names.
export async function remove(path) {
  await ask(path, { method: "DELETE", headers: token ? { "X-CSRF-Token": token } : {} });
}

// The film in a window; null for the window of the film itself. A film in no study has one picture, with 8 bits.
export async function picture(path, { center, width, inverted }, signal) {
  const query = new URLSearchParams();
  if (center !== null) query.set("center", center);
  if (center !== null) query.set("width", width);
  if (inverted) query.set("invert", "true");
  const answer = await ask(`${path}/picture?${query}`, { signal });
  if (!answer.headers.has("X-Window")) {
    return { content: await answer.blob(), center: 127.5, width: 255, values: [0, 255], isDarkHigh: false, isOnly: true };
  }
  const numbers = (name) => answer.headers.get(name).split(" ").map(Number);
  const [shownCenter, shownWidth] = numbers("X-Window");
  return {
    content: await answer.blob(),
    center: shownCenter,
    width: shownWidth,
    values: numbers("X-Values"),
    isDarkHigh: answer.headers.get("X-Dark") === "high",
  };
}

// Fetches this page again, as a document of which a part is put in place.
export async function page() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

// Lets every button of an element queue the parked work of its study again.
export function retries(root, alert) {
  root.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-retry]");
    if (!button) return;
    button.disabled = true;
    alert.textContent = "";
    try {
      await post(`/api/v1/studies/${button.dataset.retry}/retry`);
      button.textContent = "Queued again";
    } catch (error) {
      alert.textContent = error.message;
      button.disabled = false;
    }
  });
}
