// Figures as people read them. What is not known is shown as unknown, never as 0.
const UNKNOWN = "–";
const numbers = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? UNKNOWN : numbers.format(value));

export function rate(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value === 0 ? "0/s" : value < 10 ? `${value.toFixed(1)}/s` : `${numbers.format(Math.round(value))}/s`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 1) return "< 1 s";
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function since(ms, now) {
  return ms === null || ms === undefined ? UNKNOWN : `${span(Math.max(0, (now - ms) / 1000))}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

const two = (value) => String(value).padStart(2, "0");

// The time of day, by the viewer's clock: the same everywhere, not "2:03 PM" here and "14.03" there.
export function clock(ms, seconds = true) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export const moment = (ms) => (ms ? `${day(ms)} ${clock(ms)}` : UNKNOWN);

export const milliseconds = (value) => (value === null || value === undefined ? UNKNOWN : `${value} ms`);

// A list of words as a sentence has them.
export const some = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
