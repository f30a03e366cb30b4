// Long work on messages: the broker does it in batches as a job; a page follows it to its end.
import { html } from "./html.js";
import { get, remove } from "./api.js";
import { count } from "./format.js";

// Starts a job and waits for its end; ``tell`` gets each state in between. Raises when it failed.
export async function runJob(start, tell = () => {}) {
  let job = await start();
  while (job.state === "running") {
    tell(job);
    job = await get(`/api/v1/operator/jobs/${job.id}?wait=1`);
  }
  tell(job);
  if (job.state !== "done") throw new Error(job.error || `the job was ${job.state} after ${job.done} messages`);
  return job;
}

export function JobState({ job, setJob }) {
  if (!job || job.state !== "running") return null;
  const stop = async () => setJob(await remove(`/api/v1/operator/jobs/${job.id}`));
  return html`<div class="bar" role="status"><progress max=${job.total || 1} value=${job.scanned}></progress><span>${count(job.done)} done, ${count(job.scanned)} of ${count(job.total)} looked at</span><button class="do small" onClick=${stop}>Stop</button></div>`;
}
