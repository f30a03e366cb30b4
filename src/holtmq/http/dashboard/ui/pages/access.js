// Users, virtual hosts, permissions, limits, policies; definitions in and out.
import { html } from "../parts/html.js";
import { isAdministrator } from "../parts/session.js";
import { refine, route } from "../parts/route.js";
import { Definitions } from "./definitions.js";
import { Policies } from "./policies.js";
import { Users } from "./users.js";
import { Vhosts } from "./vhosts.js";

const PARTS = [
  ["users", "Users", Users, isAdministrator],
  ["vhosts", "Virtual hosts", Vhosts, () => true],
  ["policies", "Policies", Policies, () => true],
  ["definitions", "Definitions", Definitions, isAdministrator],
];

export function Access() {
  const parts = PARTS.filter(([, , , may]) => may());
  const chosen = parts.find(([name]) => name === route.value.query.part) || parts[0];
  const Part = chosen[2];
  return html`<h1>Users and policies</h1>
    <div class="tabs" role="group" aria-label="Parts">${parts.map(([name, title]) => html`<button class="do" aria-pressed=${name === chosen[0]} onClick=${() => refine({ part: name, text: "", offset: "" })}>${title}</button>`)}</div>
    <${Part} />`;
}
