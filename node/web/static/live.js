// Says when the worklist has changed: by server-sent events, or by looking now and then where there are none.

const PAUSE = 15_000;

// study: whose questions are watched, too
export function watch(changed, { said = () => {}, study = "" } = {}) {
  let source = null;
  let timer = 0;

  function stop() {
    source?.close();
    source = null;
    clearInterval(timer);
  }

  // The node sends an event when the stream opens, too, so nothing is missed between two streams.
  function start() {
    stop();
    source = new EventSource(`/api/v1/events${study && `?study=${study}`}`);
    source.addEventListener("open", () => said(true));
    source.addEventListener("studies", changed);
    source.addEventListener("error", () => {
      said(false);
      if (source?.readyState !== EventSource.CLOSED) return;
      stop(); // refused: other pages have all streams
      timer = setInterval(changed, PAUSE);
    });
  }

  // A hidden page holds no connection: a browser opens six to a node at most.
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  window.addEventListener("pagehide", stop);
  if (!document.hidden) start();
}
