// Definitions: everything but messages, out as a file, and in again after a look at what would change.
import { html, useState } from "../parts/html.js";
import { parseJson } from "../parts/json.js";
import { post } from "../parts/api.js";
import { confirmDanger } from "../parts/confirm.js";
import { count, some } from "../parts/format.js";
import { Problem, Table } from "../parts/table.js";

const nameOf = (row) => Object.entries(row).filter(([field, value]) => field !== "fields" && value !== "" && value !== null && value !== undefined).map(([, value]) => (typeof value === "string" ? value : JSON.stringify(value))).join(" ");

function Difference({ diff }) {
  const parts = Object.entries(diff.parts).filter(([, part]) => part.added_count || part.changed_count || part.unchanged);
  const columns = [
    { title: "Part", show: ([name]) => name.replace("_", " ") },
    { title: "New", num: true, show: ([, part]) => count(part.added_count) }, { title: "Changed", num: true, show: ([, part]) => count(part.changed_count) }, { title: "As it is", num: true, show: ([, part]) => count(part.unchanged) },
    { title: "Which", wide: true, show: ([, part]) => html`<ul class="plain">${part.added.slice(0, 20).map((row) => html`<li><span class="ok">+</span> <code>${nameOf(row)}</code></li>`)}${part.changed.slice(0, 20).map((row) => html`<li><span class="warn">~</span> <code>${nameOf(row)}</code>: ${row.fields.map((field) => html`<br /><span class="muted">${field.field}</span> <code>${JSON.stringify(field.before)}</code> → <code>${JSON.stringify(field.after)}</code>`)}</li>`)}</ul>` },
  ];
  return html`<${Table} label="What would change" columns=${columns} rows=${parts} keyOf=${([name]) => name} empty="The file has no definitions." />${diff.unknown.length ? html`<p class="warn">Not known here, and left out: ${diff.unknown.join(", ")}</p>` : null}`;
}

export function Definitions() {
  const [file, setFile] = useState(null);
  const [diff, setDiff] = useState(null);
  const [error, setError] = useState(null);
  const [said, setSaid] = useState("");
  const choose = async (event) => {
    setError(null);
    setSaid("");
    setDiff(null);
    const chosen = event.target.files[0];
    if (!chosen) return;
    try {
      let document;
      try {
        document = parseJson(await chosen.text(), true);
      } catch {
        throw new Error(`${chosen.name} is not JSON`);
      }
      setDiff(await post("/api/v1/dashboard/definitions-diff", document));
      setFile({ name: chosen.name, document });
    } catch (problem) {
      setError(problem);
    }
  };
  const sum = (field) => Object.values(diff.parts).reduce((total, part) => total + part[field], 0);
  const load = async () => {
    const done = await confirmDanger({ title: `Import ${file.name}`, text: `${some(sum("added_count"), "object")} will be created and ${count(sum("changed_count"))} changed. Nothing is deleted. If one part is refused, nothing is changed.`, name: "import", action: "Import", run: () => post("/api/definitions", file.document) });
    if (done) {
      setSaid("imported");
      setDiff(null);
    }
  };
  return html`<section class="panel" aria-label="Export"><h2>Export</h2><p>Users, virtual hosts, permissions, policies, exchanges, queues and bindings; no messages.</p><p><a class="do" href="/api/definitions" download="definitions.json">Export definitions</a></p></section>
    <section class="panel" aria-label="Import"><h2>Import</h2><p>A file of this broker or of RabbitMQ. What it would change is shown first.</p>
      <p><label>File <input type="file" accept="application/json,.json" onChange=${choose} /></label></p><${Problem} error=${error} /><p role="status" class="ok">${said}</p>
      ${diff && html`<${Difference} diff=${diff} /><div class="bar last"><button class="do danger" disabled=${!sum("added_count") && !sum("changed_count")} onClick=${load}>Import…</button></div>`}</section>`;
}
