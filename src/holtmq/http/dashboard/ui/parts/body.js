// A message's body as JSON, text or hex.
import { html, useState } from "./html.js";
import { parseJson } from "./json.js";

const HEX_MOST = 4096;

export function bytesOf(payload, encoding) {
  if (encoding === "base64") return Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
  return new TextEncoder().encode(typeof payload === "string" ? payload : JSON.stringify(payload));
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, HEX_MOST); at += 16) {
    const row = [...bytes.slice(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${text}`);
  }
  if (bytes.length > HEX_MOST) lines.push(`… ${bytes.length - HEX_MOST} more bytes`);
  return lines.join("\n");
}

function asJson(payload, encoding) {
  if (typeof payload !== "string") return JSON.stringify(payload, null, 2);
  if (encoding === "base64") return null;
  try {
    return JSON.stringify(parseJson(payload, true), null, 2);
  } catch {
    return null;
  }
}

export function Body({ payload, encoding = "string", cut }) {
  const json = asJson(payload, encoding);
  const [form, setForm] = useState(json !== null ? "JSON" : encoding === "base64" ? "hex" : "text");
  const forms = [["JSON", json !== null], ["text", true], ["hex", true]];
  const bytes = form === "JSON" ? null : bytesOf(payload, encoding);
  const shown = form === "JSON" ? json : form === "hex" ? hex(bytes) : typeof payload === "string" && encoding !== "base64" ? payload : new TextDecoder().decode(bytes);
  return html`<div class="body"><div class="bar tight" role="group" aria-label="Form of the body">${forms.filter(([, can]) => can).map(([name]) => html`<button type="button" class="do small" aria-pressed=${form === name} onClick=${() => setForm(name)}>${name}</button>`)}
    ${cut ? html`<span class="warn">cut off: only the first bytes are shown</span>` : null}</div>
    <pre class=${form === "hex" ? "hex" : ""}>${shown}</pre></div>`;
}
