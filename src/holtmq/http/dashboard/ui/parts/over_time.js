// Counts over time as bars; each says its time and its count.
import { html } from "./html.js";
import { clock, count, day, moment } from "./format.js";

const DAY = 86_400_000;

export function OverTime({ counts, from, step, label }) {
  const top = Math.max(1, ...counts);
  const width = 100 / counts.length;
  const name = (at) => (step >= DAY ? day(at) : `${day(at)} ${clock(at, false)}`);
  return html`<div role="img" aria-label=${`${label}: ${count(counts.reduce((sum, one) => sum + one, 0))} since ${name(from)}, ${count(top)} at most in one bar`}>
    <svg class="over-time" viewBox="0 0 100 40" preserveAspectRatio="none">${counts.map((one, index) => html`<rect class=${one ? "" : "none"} x=${index * width + width * 0.08} y=${one ? 40 - Math.max(1.5, (one / top) * 40) : 39.6} width=${width * 0.84} height=${one ? Math.max(1.5, (one / top) * 40) : 0.4}><title>${moment(from + index * step)}: ${count(one)}</title></rect>`)}</svg>
    <figcaption class="legend ends"><span>${name(from)}</span><span>highest bar: ${count(top)}</span><span>now</span></figcaption></div>`;
}
