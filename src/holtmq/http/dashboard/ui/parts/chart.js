// Lines over time, drawn by uPlot in the page's own colours.
import { html, useEffect, useRef } from "./html.js";
import { clock, count } from "./format.js";
import { brokerNow } from "./live.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 190;
const HALF_A_TIME = 30; // pixels: the last time of the axis is centred on its tick
const WHOLE = Array.from({ length: 12 }, (_, zeros) => [1, 2, 5].map((digit) => digit * 10 ** zeros)).flat();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// lines: [name, colour variable, values]. Values are drawn as they are.
function Lines({ lines, step, label, unit }) {
  const place = useRef(null);
  const plot = useRef(null);
  const length = lines[0][2].length;
  const now = Math.floor(brokerNow() / 1000);
  const at = Array.from({ length }, (_, index) => now - (length - 1 - index) * step);
  const data = [at, ...lines.map(([, , values]) => values)];
  useEffect(() => {
    const draw = () => {
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      plot.current?.destroy();
      plot.current = new uPlot(
        { width: place.current.clientWidth || 320, height: HEIGHT, legend: { show: false }, cursor: { y: false }, padding: [null, HALF_A_TIME, null, null],
          axes: [{ ...axis, space: step === 1 ? 72 : 56, values: (_, ticks) => ticks.map((tick) => clock(tick * 1000, step === 1)) }, { ...axis, ...(unit ? {} : { incrs: WHOLE }), size: 66, values: (_, ticks) => ticks.map((tick) => `${count(tick)}${unit}`) }],
          scales: { y: { range: (_, low, high) => [0, Math.max((high || 0) * 1.05, 1)] } },
          series: [{}, ...lines.map(([name, variable]) => ({ label: name, stroke: colour(variable), width: 2, points: { show: false } }))] },
        plot.current ? plot.current.data : data, place.current);
    };
    draw();
    const watch = new ResizeObserver(() => plot.current.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    watch.observe(place.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => {
      scheme.removeEventListener("change", draw);
      watch.disconnect();
      plot.current.destroy();
    };
  }, [step, lines.length]);
  useEffect(() => plot.current?.setData(data));
  const latest = lines.map(([name, , values]) => `${name} ${values.length ? count(Math.round(values[values.length - 1] * 10) / 10) : "unknown"}${unit}`).join(", ");
  return html`<div role="img" aria-label=${`${label}: ${latest}`}>
    <div class="chart" ref=${place}></div>
    <figcaption class="legend">${lines.map(([name, variable]) => html`<span><i class=${variable.slice(2)}></i>${name}</span>`)}</figcaption>
  </div>`;
}

export function Rates({ series, step, label }) {
  const scaled = (values) => values.map((value) => value / step);
  const lines = [["published", "--in", scaled(series.published)], ["delivered", "--out", scaled(series.delivered)], ["acknowledged", "--ack", scaled(series.acked)]];
  return html`<${Lines} lines=${lines} step=${step} label=${label} unit="/s" />`;
}

export const Depth = ({ values, step, label }) => html`<${Lines} lines=${[["ready", "--in", values]]} step=${step} label=${label} unit="" />`;

// A line the size of a word: messages in above, out below it in another colour.
export function Spark({ lines, label }) {
  if (!lines) return null;
  const top = Math.max(1, ...lines.flat());
  const points = (values) => values.map((value, index) => `${((index / (values.length - 1)) * 80).toFixed(1)},${(18 - (value / top) * 16).toFixed(1)}`).join(" ");
  return html`<svg class="spark" width="80" height="20" role="img" aria-label=${label}><polyline class="out" points=${points(lines[1])} /><polyline class="in" points=${points(lines[0])} /></svg>`;
}
