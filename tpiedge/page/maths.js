// Draws formulas as MathML; loaded when the first is shown. The browser draws them with a font of the system.

import DOMPurify from "./vendor/dompurify/purify.min.js";
import temml from "./vendor/temml/temml.min.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms".split(" "),
    ..."mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover none span".split(" "),
  ],
  ALLOWED_ATTR: [
    ..."accent accentunder class columnalign depth display displaystyle fence form height largeop".split(" "),
    ..."linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits".split(" "),
    ..."notation rowspacing rspace scriptlevel separator stretchy style symmetric voffset width".split(" "),
  ],
  IN_PLACE: true,
};
// Definitions multiply, and what these commands do doubles with every nesting: a short formula could take minutes.
const COSTLY = new RegExp(
  String.raw`\\(?:[egx]?def|(?:new|renew|provide)command|(?:math)?llap|cancelto|equilibrium(?:Left|Right))(?![a-zA-Z])`,
);
// In em: a formula does not cover what is around it.
const LARGEST = [20, 40];

// An element that shows `tex`; null where it is no TeX, or uses what could name an address or take long.
export function mathsOf(tex, display) {
  if (COSTLY.test(tex)) return null;
  const around = document.createElement("span");
  try {
    temml.render(tex, around, { displayMode: display, throwOnError: true, maxSize: LARGEST });
  } catch {
    return null; // whoever reads sees what the model wrote
  }
  return DOMPurify.sanitize(around, ALLOWED);
}
