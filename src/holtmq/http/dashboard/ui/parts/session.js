// Who is logged in, and what that user may do. A page offers nothing else; the broker checks again.
import { signal } from "./html.js";
import { get } from "./api.js";

export const session = signal(null);

export async function loadSession() {
  session.value = await get("/api/v1/session");
}

const tags = () => session.value?.tags || [];
export const isAdministrator = () => tags().includes("administrator");
export const isMonitoring = () => isAdministrator() || tags().includes("monitoring");
export const isPolicymaker = () => isAdministrator() || tags().includes("policymaker");
export const isManagement = () => isMonitoring() || isPolicymaker() || tags().includes("management");

// On some queue at least: configure, write, read.
export const couldDo = (action) => Boolean(session.value?.may?.[action]);
