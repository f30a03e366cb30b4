// Data of a page: loaded now, again every few seconds while it is looked at, and after every action.
import { useCallback, useEffect, useState } from "./html.js";
import { get } from "./api.js";

export function useData(path, everySeconds = 2) {
  const [state, setState] = useState({ data: null, error: null });
  const load = useCallback(async () => {
    try {
      const data = await get(path);
      setState({ data, error: null });
    } catch (error) {
      setState((before) => ({ data: before.data, error }));
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
