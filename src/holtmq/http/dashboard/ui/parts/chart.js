// Lines over time, drawn by uPlot in the page's own colours.
import { html, useEffect, useRef } from "./html.js";
import { brokerNow } from "./live.js";
import uPlot from "../vendor/uplot.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Rates({ series, step, label }) {
  const place = useRef(null);
  const plot = useRef(null);
  const length = series.published.length;
  const now = Math.floor(brokerNow() / 1000);
  const at = Array.from({ length }, (_, index) => now - (length - 1 - index) * step);
  const scaled = (values) => values.map((value) => value / step);
  const data = [at, scaled(series.published), scaled(series.delivered), scaled(series.acked)];
  useEffect(() => {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const line = (name, variable) => ({ label: name, stroke: colour(variable), width: 2, points: { show: false } });
    const made = new uPlot(
      { width: place.current.clientWidth || 320, height: 190, legend: { show: false }, cursor: { y: false },
        axes: [axis, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => `${tick}/s`) }],
        scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1)] } },
        series: [{}, line("published", "--in"), line("delivered", "--out"), line("acked", "--ack")] },
      data, place.current);
    plot.current = made;
    const watch = new ResizeObserver(() => made.setSize({ width: place.current.clientWidth, height: 190 }));
    watch.observe(place.current);
    return () => {
      watch.disconnect();
      made.destroy();
    };
  }, [step]);
  useEffect(() => plot.current?.setData(data));
  const latest = (values) => (values.length ? (values[values.length - 1] / step).toFixed(1) : "0");
  return html`<figure role="img" aria-label=${`${label}: published ${latest(series.published)}, delivered ${latest(series.delivered)}, acknowledged ${latest(series.acked)} per second`}>
    <div class="chart" ref=${place}></div>
    <figcaption class="legend"><span><i class="in"></i>published</span><span><i class="out"></i>delivered</span><span><i class="ack"></i>acknowledged</span></figcaption>
  </figure>`;
}

// A line the size of a word.
export function Spark({ values, label }) {
  if (!values || !values.length) return null;
  const top = Math.max(...values, 1);
  const points = values.map((value, index) => `${(index / (values.length - 1)) * 80},${18 - (value / top) * 16}`).join(" ");
  return html`<svg width="80" height="20" role="img" aria-label=${label}><polyline points=${points} fill="none" stroke="currentColor" stroke-width="1.5" /></svg>`;
}
