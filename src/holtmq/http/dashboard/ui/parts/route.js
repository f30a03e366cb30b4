// Where we are: #/queues?text=a. Every filter lives in the URL, so that any view can be linked to.
import { signal } from "./html.js";

// A name that was not encoded, such as 100%, is taken as it is.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function read() {
  const [path, search] = (location.hash.slice(1) || "/").split("?");
  return { path, segments: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(search || "")) };
}

export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
  document.getElementById("main")?.focus();
});

export function go(path) {
  location.hash = path;
}

// Change filters of this page without a new entry in the history.
export function refine(changes) {
  const { path, query } = route.value;
  const next = { ...query, ...changes };
  const search = new URLSearchParams(Object.entries(next).filter(([, value]) => value !== "" && value !== undefined && value !== null && value !== false));
  history.replaceState(null, "", "#" + path + (search.size ? "?" + search : ""));
  route.value = read();
}
