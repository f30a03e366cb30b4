// A dangerous action asks for the name of what it destroys and says how many messages are meant.
import { html, signal, useEffect, useRef, useState } from "./html.js";

const asked = signal(null);

// Resolves to true when the action was done, false when it was given up.
export function confirmDanger({ title, text, name, action, run }) {
  return new Promise((resolve) => {
    asked.value = { title, text, name, action, run, resolve };
  });
}

export function ConfirmDialog() {
  const dialog = useRef(null);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState("");
  const question = asked.value;
  useEffect(() => {
    if (question) {
      setTyped("");
      setError("");
      dialog.current.showModal();
    } else if (dialog.current.open) dialog.current.close();
  }, [question]);
  const end = (done) => {
    asked.value = null;
    question.resolve(done);
  };
  const submit = async (event) => {
    event.preventDefault();
    try {
      await question.run();
      end(true);
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onCancel=${(event) => { event.preventDefault(); end(false); }}>
    ${question && html`<form onSubmit=${submit}>
      <h2 id="confirm-title">${question.title}</h2>
      <p>${question.text}</p>
      ${question.name && html`<label>Type <code>${question.name}</code> to go on
        <input value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" aria-label="Name" /></label>`}
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <div class="row"><button type="button" class="do" onClick=${() => end(false)}>Keep</button>
        <button class="do danger" disabled=${question.name && typed !== question.name}>${question.action}</button></div>
    </form>`}
  </dialog>`;
}
