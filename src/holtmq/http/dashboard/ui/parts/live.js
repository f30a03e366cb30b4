// The overview as the broker sends it, once a second, and whether the broker is there at all.
import { signal } from "./html.js";
import { signedOut } from "./api.js";

export const overview = signal(null);
export const connected = signal(true);

let ahead = 0; // the broker's clock against this browser's, in milliseconds

// The broker's time: ages are counted by its clock.
export const brokerNow = () => Date.now() + ahead;

let source = null;

export function stopListening() {
  if (source) source.close();
  source = null;
  overview.value = null;
}

export function listen() {
  if (source) source.close();
  const opened = (source = new EventSource("/api/v1/dashboard/events"));
  source.addEventListener("overview", (event) => {
    overview.value = JSON.parse(event.data);
    ahead = overview.value.now - Date.now();
    connected.value = true;
  });
  source.onerror = () => {
    if (opened !== source) return;
    connected.value = false;
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => opened === source && check(), 2000);
  };
}

// A closed stream may mean that the session has ended: ask once, then listen again.
async function check() {
  try {
    const answer = await fetch("/api/v1/dashboard/overview", { credentials: "same-origin" });
    if (answer.status === 401) {
      signedOut.value = true;
      return;
    }
  } catch {
    // The broker is away: the next try finds out when it is back.
  }
  listen();
}
