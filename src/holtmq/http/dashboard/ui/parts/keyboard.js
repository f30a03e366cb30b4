// "/" moves to the search field, "g q" to the queues and so on, "?" shows all keys.
import { html, signal, useEffect, useRef } from "./html.js";
import { go } from "./route.js";

const shown = signal(false);

export function useKeyboard(pages) {
  const known = useRef(pages);
  known.current = pages;
  useEffect(() => {
    let pending = false;
    const press = (event) => {
      if (event.key === "Escape" && event.target.matches("input[type=search]")) event.target.blur(); // so that "g q" works again
      if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (document.querySelector("dialog[open]")) return;
      if (pending) {
        pending = false;
        const page = known.current.find(([, , , key]) => key === event.key);
        if (page) go(`/${page[0]}`);
      } else if (event.key === "g") pending = true;
      else if (event.key === "?") shown.value = true;
      else if (event.key === "/") {
        const field = document.querySelector("input[type=search]");
        event.preventDefault();
        if (field) field.focus();
        else go("/queues");
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

export function KeyHelp({ pages }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (shown.value) dialog.current.showModal();
    else if (dialog.current.open) dialog.current.close();
  }, [shown.value]);
  return html`<dialog ref=${dialog} aria-labelledby="keys-title" onClose=${() => { shown.value = false; }}><h2 id="keys-title">Keys</h2>
    <dl class="keys"><div><dt><kbd>/</kbd></dt><dd>search</dd></div><div><dt><kbd>Esc</kbd></dt><dd>leave the search</dd></div>${pages.map(([, title, , key]) => html`<div><dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${title}</dd></div>`)}<div><dt><kbd>?</kbd></dt><dd>these keys</dd></div></dl>
    <form method="dialog" class="row"><button class="do" type="button" onClick=${() => { shown.value = false; }}>Close</button></form></dialog>`;
}
