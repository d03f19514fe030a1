// What a browser keeps for this page. Where it forbids that, this is kept until the page closes.

const kept = new Map();

/** The text of a name, or null. `area` is "localStorage" or "sessionStorage", of one tab. */
export function read(area, name) {
  try {
    return window[area].getItem(name);
  } catch {
    return kept.get(name) ?? null;
  }
}

export function write(area, name, text) {
  try {
    window[area].setItem(name, text);
  } catch {
    kept.set(name, text);
  }
}
