// Data of a page: loaded now, again every few seconds while it is looked at, and after every action.
import { useCallback, useEffect, useRef, useState } from "./html.js";
import { get } from "./api.js";

export function useData(path, everySeconds = 2) {
  const [state, setState] = useState({ data: null, error: null });
  const wanted = useRef(path);
  wanted.current = path;
  const load = useCallback(async () => {
    // On a slow network an answer may come after the page has asked for something else: it is dropped.
    const show = (next) => wanted.current === path && setState(next);
    try {
      const data = await get(path);
      show({ data, error: null });
    } catch (error) {
      show((before) => ({ data: before.data, error }));
    }
  }, [path]);
  useEffect(() => {
    let stopped = false;
    let timer = null;
    const run = async () => {
      if (!document.hidden) await load();
      if (!stopped && everySeconds) timer = setTimeout(run, everySeconds * 1000);
    };
    setState({ data: null, error: null });
    run();
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [load, everySeconds]);
  return { ...state, reload: load };
}
