// A table whose columns can be sorted by the server.
import { html } from "./html.js";
import { refine, route } from "./route.js";

export function Table({ columns, rows, empty, label, keyOf }) {
  const { sort, descending } = route.value.query;
  return html`<div class="scroll"><table aria-label=${label}>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.num ? "num" : ""}
        aria-sort=${column.sort && sort === column.sort ? (descending ? "descending" : "ascending") : undefined}>
      ${column.sort
        ? html`<button onClick=${() => refine({ sort: column.sort, descending: sort === column.sort && !descending ? "true" : "", offset: "" })}>
            ${column.title}${sort === column.sort ? (descending ? " ↓" : " ↑") : ""}</button>`
        : column.title}</th>`)}</tr></thead>
    <tbody>${rows.length
      ? rows.map((row) => html`<tr key=${keyOf ? keyOf(row) : undefined}>${columns.map((column) => html`<td class=${column.num ? "num" : ""}>${column.show(row)}</td>`)}</tr>`)
      : html`<tr><td colspan=${columns.length} class="muted">${empty}</td></tr>`}</tbody>
  </table></div>`;
}

export function Pager({ total, offset, limit }) {
  if (total <= limit && !offset) return null;
  const last = Math.min(total, offset + limit);
  return html`<div class="bar" role="navigation" aria-label="Pages">
    <button class="do" disabled=${offset === 0} onClick=${() => refine({ offset: Math.max(0, offset - limit) || "" })}>Previous</button>
    <span class="muted">${offset + 1}–${last} of ${total}</span>
    <button class="do" disabled=${last >= total} onClick=${() => refine({ offset: offset + limit })}>Next</button>
  </div>`;
}

export const Problem = ({ error }) => (error ? html`<p class="notice" role="alert">${error.message}</p>` : null);
