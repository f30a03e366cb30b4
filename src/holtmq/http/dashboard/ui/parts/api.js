// Requests to the broker. A refusal becomes an Error with the broker's own text; 401 shows the login.
import { signal } from "./html.js";
import { parseJson } from "./json.js";

export const signedOut = signal(false);

// ``asWritten``: numbers in the answer stay as they were written, for messages that are shown and sent again.
export async function request(method, path, body, headers = {}, asWritten = false) {
  const options = { method, headers: { accept: "application/json", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const dots = path.split("?")[0].split("/").find((segment) => segment === "." || segment === "..");
  if (dots) throw new Error(`a browser cannot ask for something named "${dots}", it would ask for another path: use the holt command or curl --path-as-is`);
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the broker does not answer");
  }
  if (answer.status === 401) {
    signedOut.value = true;
    throw new Error("log in first");
  }
  const text = await answer.text();
  const data = text && (answer.headers.get("content-type") || "").includes("json") ? parseJson(text, asWritten) : text;
  if (!answer.ok) throw new Error((data && (data.error_description || data.reason || data.error)) || `${answer.status} ${answer.statusText}`);
  return data;
}

export const get = (path) => request("GET", path);
export const post = (path, body) => request("POST", path, body);
export const put = (path, body) => request("PUT", path, body);
export const remove = (path, body, headers) => request("DELETE", path, body, headers);

// Path segments of names that users chose.
export const part = (text) => encodeURIComponent(text);

export function query(values) {
  const pairs = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return pairs.length ? "?" + pairs.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&") : "";
}
