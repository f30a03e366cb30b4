// A dangerous action asks for the name of what it destroys and says how many messages are meant.
import { html, signal, useEffect, useRef, useState } from "./html.js";

const asked = signal(null);

// Resolves to what ``run`` returned (true when that is nothing), or to false when it was given up.
// ``name``: must be typed. ``field``: a text that is passed to ``run``, such as a reason.
export function confirmDanger({ title, text, name, action, field, run }) {
  return new Promise((resolve) => {
    asked.value = { title, text, name, action, field, run, resolve };
  });
}

export function ConfirmDialog() {
  const dialog = useRef(null);
  const [typed, setTyped] = useState("");
  const [extra, setExtra] = useState("");
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const question = asked.value;
  useEffect(() => {
    if (question) {
      setTyped("");
      setExtra("");
      setError("");
      setBusy(false);
      dialog.current.showModal();
    } else if (dialog.current.open) dialog.current.close();
  }, [question]);
  const end = (done) => {
    asked.value = null;
    question.resolve(done);
  };
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const result = await question.run(extra);
      end(result || true);
    } catch (problem) {
      setError(problem.message);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onCancel=${(event) => { event.preventDefault(); end(false); }}>
    ${question && html`<form onSubmit=${submit}>
      <h2 id="confirm-title">${question.title}</h2>
      <p>${question.text}</p>
      ${question.field && html`<label class="field wide"><span>${question.field}</span><input value=${extra} onInput=${(event) => setExtra(event.target.value)} autocomplete="off" /></label>`}
      ${question.name && html`<label class="field wide"><span>Type <code>${question.name}</code> to go on</span>
        <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" aria-label="Name" /></label>`}
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <div class="row"><button type="button" class="do" onClick=${() => end(false)}>Keep</button>
        <button class="do danger" disabled=${busy || (question.name && typed !== question.name)}>${question.action}</button></div>
    </form>`}
  </dialog>`;
}
