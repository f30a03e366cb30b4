// Small forms: submit once, say what happened, keep what was typed when it was refused.
import { html, useState } from "./html.js";

// run(values, form) resolves to the text to show. ``children`` are the fields.
export function Form({ run, action, danger, children, label, reset }) {
  const [said, setSaid] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    setBusy(true);
    try {
      const text = await run(Object.fromEntries(new FormData(form)), form);
      setSaid({ text: text || "done", bad: false });
      if (reset) form.reset();
    } catch (error) {
      setSaid({ text: error.message, bad: true });
    }
    setBusy(false);
  };
  return html`<form class="fields" aria-label=${label} onSubmit=${submit}>${children}
    <div class="bar last"><button class=${`do ${danger ? "danger" : ""}`} disabled=${busy}>${action}</button>
      ${said && html`<span role=${said.bad ? "alert" : "status"} class=${said.bad ? "bad" : "ok"}>${said.text}</span>`}</div></form>`;
}

// JSON that a person typed; the error names the field.
export function readJson(text, field, empty = {}) {
  if (!text || !text.trim()) return empty;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${field}: this is not JSON (${error.message})`);
  }
}

export const Field = ({ label, wide, children }) => html`<label class=${wide ? "field wide" : "field"}><span>${label}</span>${children}</label>`;
