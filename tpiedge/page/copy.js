// Copies text to the clipboard, and has the buttons for it.

import { texts } from "./texts.js";

const SHOWN_MS = 1500;

// A button that copies what `textOf` returns, and says so for a moment.
export function copyButton(textOf, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = label;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(textOf())) ? texts.chat.copied : texts.chat.notCopied;
    setTimeout(() => (button.textContent = label), SHOWN_MS);
  });
  return button;
}

// Whether `text` is on the clipboard now. A page without https may only copy what is selected.
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false; // the user forbade it
    }
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  const { activeElement } = document;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  activeElement?.focus();
  return copied;
}
