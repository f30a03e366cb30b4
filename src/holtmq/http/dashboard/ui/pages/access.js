// Users, virtual hosts and policies.
import { html } from "../parts/html.js";
import { useData } from "../parts/load.js";
import { Problem, Table } from "../parts/table.js";

export function Access() {
  const users = useData("/api/users", 10);
  const vhosts = useData("/api/vhosts", 10);
  const permissions = useData("/api/permissions", 10);
  const policies = useData("/api/policies", 10);
  const tags = (row) => (Array.isArray(row.tags) ? row.tags : String(row.tags || "").split(",")).filter(Boolean);
  return html`<h1>Users, vhosts, policies</h1><${Problem} error=${users.error || policies.error} />
    <section class="panel"><h2>Users</h2><${Table} label="Users" rows=${users.data || []} empty="No users to show." columns=${[{ title: "User", show: (row) => html`<b>${row.name}</b>` }, { title: "Tags", show: (row) => tags(row).map((tag) => html`<span class="tag">${tag}</span> `) }]} /></section>
    <section class="panel"><h2>Permissions</h2><${Table} label="Permissions" rows=${permissions.data || []} empty="No permissions to show." columns=${[{ title: "User", show: (row) => row.user }, { title: "Vhost", show: (row) => html`<code>${row.vhost}</code>` }, { title: "Configure", show: (row) => html`<code>${row.configure}</code>` }, { title: "Write", show: (row) => html`<code>${row.write}</code>` }, { title: "Read", show: (row) => html`<code>${row.read}</code>` }]} /></section>
    <section class="panel"><h2>Virtual hosts</h2><${Table} label="Virtual hosts" rows=${vhosts.data || []} empty="No virtual hosts to show." columns=${[{ title: "Vhost", show: (row) => html`<code>${row.name}</code>` }]} /></section>
    <section class="panel"><h2>Policies</h2><${Table} label="Policies" rows=${policies.data || []} empty="No policies." columns=${[{ title: "Policy", show: (row) => html`<b>${row.name}</b>` }, { title: "Vhost", show: (row) => html`<code>${row.vhost}</code>` }, { title: "Pattern", show: (row) => html`<code>${row.pattern}</code>` }, { title: "Applies to", show: (row) => row["apply-to"] }, { title: "Priority", num: true, show: (row) => row.priority }, { title: "Definition", show: (row) => html`<code>${JSON.stringify(row.definition)}</code>` }]} /></section>
    <p><a href="/api/definitions" download="definitions.json">Export definitions</a></p>`;
}
