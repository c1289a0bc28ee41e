// A modal dialog, open while it is mounted. The focus goes back to where it was, as far as that is still there.

import { html, useLayoutEffect, useRef } from "./vendor/htm/standalone.module.js";

// `name` and `why` are the ids of the elements that say what it is; `cancel` is called for Escape.
export function Dialog({ name, why, cancel, children, ...others }) {
  const dialog = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => focusAgain(before);
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby=${name} aria-describedby=${why} ...${others}
    onCancel=${(event) => { event.preventDefault(); cancel(); }}>${children}</dialog>`;
}

// What had the focus may be gone, or go with the same change: then the view gets it, and Tab goes on from its start.
function focusAgain(before) {
  requestAnimationFrame(() => {
    if (document.activeElement !== document.body && document.activeElement) return; // somebody put it elsewhere
    if (before && before !== document.body && before.isConnected) before.focus();
    if (document.activeElement === document.body) document.getElementById("content").focus();
  });
}
