// A table whose columns can be sorted by the server. On a narrow window rows become cards.
import { html, useEffect } from "./html.js";
import { count } from "./format.js";
import { refine, route } from "./route.js";

// A column has ``age`` when the server sorts by a time and the page shows how long ago that was.
// ``order``: the column that the server sorts by unless it is asked otherwise; ``falling``: the largest first.
export function Table({ columns, rows, empty, label, keyOf, order, falling }) {
  const asked = route.value.query;
  const sort = asked.sort || order;
  const descending = asked.sort ? asked.descending : falling;
  const falls = (column) => Boolean(descending) !== Boolean(column.age); // the earliest time is the greatest age
  const sortable = columns.filter((column) => column.sort);
  return html`${sortable.length ? html`<label class="only-narrow">Sort by <select value=${sort} onChange=${(event) => refine({ sort: event.target.value, descending: "", offset: "" })}>${sortable.map((column) => html`<option value=${column.sort}>${column.title}</option>`)}</select><button class="do small" aria-label=${descending ? "Smallest first" : "Largest first"} onClick=${() => refine({ sort, descending: descending ? "" : "true", offset: "" })}>${descending ? "↓" : "↑"}</button></label>` : null}<div class="scroll"><table class="list" aria-label=${label}>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.num ? "num" : ""}
        aria-sort=${column.sort && sort === column.sort ? (falls(column) ? "descending" : "ascending") : undefined}>
      ${column.sort
        ? html`<button onClick=${() => refine({ sort: column.sort, descending: sort === column.sort && !descending ? "true" : "", offset: "" })}>
            ${column.title}${sort === column.sort ? (falls(column) ? " ↓" : " ↑") : ""}</button>`
        : column.title || html`<span class="hidden">Actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows.length
      ? rows.map((row, index) => html`<tr key=${keyOf ? keyOf(row) : undefined}>${columns.map((column) => html`<td class=${column.num ? "num" : column.wide ? "wide" : ""} data-title=${column.title}>${column.show(row, index)}</td>`)}</tr>`)
      : html`<tr><td colspan=${columns.length} class="muted">${empty}</td></tr>`}</tbody>
  </table></div>`;
}

export function Pager({ total, offset, limit }) {
  // What was deleted, or an old link, can leave a page behind the end: the last page is shown instead.
  const behind = offset > 0 && offset >= total;
  useEffect(() => { if (behind) refine({ offset: total ? Math.floor((total - 1) / limit) * limit || "" : "" }); }, [behind, total]);
  if (behind || (total <= limit && !offset)) return null;
  const last = Math.min(total, offset + limit);
  return html`<div class="bar last" role="navigation" aria-label="Rows">
    <button class="do" disabled=${offset === 0} onClick=${() => refine({ offset: Math.max(0, offset - limit) || "" })}>Previous</button>
    <span class="muted">${count(offset + 1)}–${count(last)} of ${count(total)}</span>
    <button class="do" disabled=${last >= total} onClick=${() => refine({ offset: offset + limit })}>Next</button>
  </div>`;
}

export const Problem = ({ error }) => (error ? html`<p class="notice" role="alert">${error.message}</p>` : null);

export const Loading = () => html`<p class="muted">Loading…</p>`;

// The search field of a list; "/" moves to it.
export function Search({ name = "text", label }) {
  return html`<input type="search" aria-label=${label} placeholder=${`${label} ( / )`} value=${route.value.query[name] || ""} onInput=${(event) => refine({ [name]: event.target.value, offset: "" })} />`;
}

// A list without paging of its own, such as users: sorted by the page.
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
