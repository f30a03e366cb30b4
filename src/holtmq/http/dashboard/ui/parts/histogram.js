// Counts by range, as bars of text size that a screen reader can read, too.
import { html } from "./html.js";
import { count } from "./format.js";

export function Histogram({ title, rows, name }) {
  const top = Math.max(1, ...rows.map((row) => row.count));
  return html`<section class="panel" aria-label=${title}><h2>${title}</h2><table class="bars" aria-label=${title}><tbody>${rows.map((row) => html`<tr>
    <th scope="row">${name(row)}</th><td><svg class="strip" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect width=${(row.count / top) * 100} height="10" /></svg></td><td class="num">${count(row.count)}</td></tr>`)}</tbody></table></section>`;
}
