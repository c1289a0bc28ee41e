// Hooks that render a component again when its state elsewhere changes, or at an interval.

import { useEffect, useState } from "./vendor/htm/standalone.module.js";

// Renders the component again when `target` sends "change": once a frame at most.
export function useChanges(target) {
  const [, refresh] = useState(0);
  useEffect(() => {
    let frame = 0;
    const changed = () => (frame ||= requestAnimationFrame(render));
    const render = () => {
      frame = 0;
      refresh((count) => count + 1);
    };
    target.addEventListener("change", changed);
    changed(); // since it was rendered first, before anybody listened
    return () => {
      target.removeEventListener("change", changed);
      cancelAnimationFrame(frame);
    };
  }, [target]);
}

// Renders the component again every `ms`, while that is not 0.
export function useTicks(ms) {
  const [, refresh] = useState(0);
  useEffect(() => {
    if (!ms) return undefined;
    const timer = setInterval(() => refresh((count) => count + 1), ms);
    return () => clearInterval(timer);
  }, [ms]);
}
