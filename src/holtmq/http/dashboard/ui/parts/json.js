// JSON without loss: a number that JavaScript cannot hold, such as a 64-bit id, stays as it was written.
// A browser that does not tell how a number was written (before 2025) rounds it, as JSON.parse does.

// ``asWritten``: also 1.0 and 1e3 stay; without it, only integers that would be rounded do.
export function parseJson(text, asWritten = false) {
  const keep = (value, source) => source !== String(value) && (asWritten || (Number.isInteger(value) && !Number.isSafeInteger(value)));
  const revive = (_, value, context) => (typeof value === "number" && context?.source !== undefined && keep(value, context.source) ? JSON.rawJSON(context.source) : value);
  return JSON.rawJSON ? JSON.parse(text, revive) : JSON.parse(text);
}
