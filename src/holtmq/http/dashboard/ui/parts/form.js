// Small forms: submit once, say what happened, keep what was typed when it was refused.
// Fields have defaultValue and defaultChecked: with value, each refresh of a page would undo what was typed.
import { html, useState } from "./html.js";
import { parseJson } from "./json.js";

// run(values, form) resolves to the text to show. ``children`` are the fields.
// ``first``: the text of a button that comes before it, as [name, text]; ``values`` has the name if it was used.
export function Form({ run, action, first, danger, children, label }) {
  const [said, setSaid] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    setBusy(true);
    try {
      const text = await run(Object.fromEntries(new FormData(form, event.submitter)), form);
      setSaid({ text: text || "done", bad: false });
    } catch (error) {
      setSaid({ text: error.message, bad: true });
    }
    setBusy(false);
  };
  return html`<form class="fields" aria-label=${label} onSubmit=${submit}>${children}
    <div class="bar last">${first && html`<button class="do" name=${first[0]} value="true" disabled=${busy}>${first[1]}</button>`}<button class=${`do ${danger ? "danger" : ""}`} disabled=${busy}>${action}</button>
      ${said && html`<span role=${said.bad ? "alert" : "status"} class=${said.bad ? "bad" : "ok"}>${said.text}</span>`}</div></form>`;
}

// JSON that a person typed; the error names the field.
export function readJson(text, field, empty = {}) {
  if (!text || !text.trim()) return empty;
  try {
    return parseJson(text, true);
  } catch (error) {
    throw new Error(`${field}: this is not JSON (${error.message})`);
  }
}

export const Field = ({ label, wide, children }) => html`<label class=${wide ? "field wide" : "field"}><span>${label}</span>${children}</label>`;
