// A panel that a click in a list opens. It may be far from what was clicked, so it comes into view and gets the focus.
import { html, useEffect, useRef } from "./html.js";

export function Opened({ label, children }) {
  const panel = useRef(null);
  useEffect(() => {
    panel.current.scrollIntoView({ block: "nearest" });
    panel.current.focus({ preventScroll: true });
  }, []);
  return html`<section class="panel opened" ref=${panel} tabindex="-1" aria-label=${label}>${children}</section>`;
}
