// The one place that knows the libraries: markup as tagged templates, hooks and signals.
import { h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { render };
export { useEffect, useRef, useState, useCallback } from "../vendor/hooks.js";
export { signal, computed, effect } from "../vendor/signals.js";
