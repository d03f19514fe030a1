// Both panes: sentences and their translations, which light up together, and shading.

import { hasSpaces } from "./languages.js";

const SHADES = [0.8, 0.6]; // mean probability of a token below which a sentence is shaded

/**
 * The sentences on both sides. Each has a row: {text, before, start, end}, its translation, and its
 * elements: [gap, span] in `marks`, below the text field, and in `target`.
 */
export class Panes {
  constructor({ source, marks, target }) {
    Object.assign(this, { source, marks, target });
    this.rows = [];
    this.lit = [];
    this.language = this.shownText = "";
    this.marksEnd = marks.appendChild(document.createTextNode(""));
    this.targetEnd = target.appendChild(document.createTextNode("")); // after the last sentence
  }

  /** Shows sentences. Rows at the begin and end that are as before keep their elements. */
  show(sentences, text, language) {
    this.light(-1);
    this.shownText = text;
    const old = this.rows;
    const isNew = language !== this.language;
    this.language = this.target.lang = language;
    const space = hasSpaces(language) ? " " : "";
    const same = (row, sentence) =>
      !isNew && row && row.text === sentence.text && row.before === sentence.before;
    let first = 0;
    while (first < sentences.length && same(old[first], sentences[first])) first++;
    let last = 0;
    const most = Math.min(old.length, sentences.length) - first;
    while (last < most && same(old.at(-1 - last), sentences.at(-1 - last))) last++;
    const removed = old.slice(first, old.length - last);
    const added = sentences.slice(first, sentences.length - last)
      .map((sentence, index) => makeRow(sentence, removed[index]?.right[1].textContent));
    insert(this.marks, added.map((row) => row.left), old[first]?.left[0] ?? this.marksEnd);
    insert(this.target, added.map((row) => row.right), old[first]?.right[0] ?? this.targetEnd);
    for (const row of removed) for (const node of [...row.left, ...row.right]) node.remove();
    this.rows = [...old.slice(0, first), ...added, ...old.slice(old.length - last)];
    this.rows.forEach((row, number) => {
      const { start, end } = sentences[number];
      Object.assign(row, { start, end });
      row.left[1].dataset.row = row.right[1].dataset.row = number;
      row.right[0].data = number > 0 ? row.before.replace(/^ ?$/, space) : row.before.trimStart();
    });
    const end = text.slice(sentences.at(-1)?.end ?? 0); // numbers, marks: no sentence
    this.targetEnd.data = end.trimEnd();
    // A last line that is empty has a height only with a character.
    this.marksEnd.data = `${end}\n`;
    this.#setTabStop(Math.min(this.tabStop ?? 0, this.rows.length - 1));
  }

  /** Shows translations that are there now; `translationOf` gives the one of a text. */
  update(translationOf) {
    for (const row of this.rows) {
      const translation = translationOf(row.text);
      if (translation) this.#set(row, translation);
    }
  }

  /** Shows another text as the translation of a row, and of those with the same text. */
  choose({ translation }, text) {
    translation.chosen = text === translation.text ? undefined : text;
    for (const row of this.rows) if (row.translation === translation) this.#set(row, translation);
  }

  #set(row, translation) {
    const shown = translation.chosen ?? translation.text;
    if (row.translation === translation && row.shown === shown) return;
    Object.assign(row, { translation, shown, hasWords: false });
    const span = row.right[1];
    span.textContent = shown;
    span.classList.remove("waiting", "unsure-1", "unsure-2");
    span.classList.toggle("chosen", shown !== translation.text);
    span.setAttribute("role", "button");
    this.#shade(row, span);
  }

  #shade({ translation, shown }, span) {
    span.removeAttribute("title");
    if (shown !== translation.text || typeof translation.log_prob !== "number") return;
    const share = Math.exp(translation.log_prob / (translation.tokens.length + 1));
    const shade = SHADES.filter((limit) => share < limit).length;
    if (shade) span.classList.add(`unsure-${shade}`);
    span.title = `${Math.round(100 * share)}% sure of each word, on average`;
  }

  /** The translation as text. */
  get text() {
    const rows = this.rows.map(({ right: [gap, span] }) => gap.data + span.textContent);
    return rows.join("") + this.targetEnd.data;
  }

  // --- Lighting up -------------------------------------------------------------------------------

  /** Lights up a sentence on both sides; and a word of `side`, 0 or 1, with those linked to it. */
  light(number, side = 0, word = -1) {
    for (const element of this.lit) element.classList.remove("on");
    this.lit = [];
    const row = this.rows[number];
    // Marks of another text than the field has would be at wrong places.
    if (!row || this.source.value !== this.shownText) return;
    this.lit = [row.left[1], row.right[1]];
    const words = wordsOf(row);
    const span = words?.[side][word];
    if (span) {
      const links = row.translation.alignment.filter((link) => link[side] === word);
      const linked = links.map((link) => words[1 - side][link[1 - side]]);
      this.lit.push(span, ...linked.filter(Boolean));
    }
    for (const element of this.lit) element.classList.add("on");
  }

  /** Lights up what is at a point of the source or the target. */
  lightAt(x, y, element) {
    const span = element?.closest?.("[data-row]");
    const number = span ? Number(span.dataset.row) : this.#rowAt(x, y);
    const words = this.rows[number] && wordsOf(this.rows[number]);
    const side = span ? 1 : 0;
    const word = words?.[side].findIndex((one) => one && covers(one, x, y));
    this.light(number, side, word);
  }

  /** Lights up the sentence around a place of the source. */
  lightPlace(place) {
    const number = this.rows.findIndex((row) => row.start <= place && place <= row.end);
    this.light(number);
    if (number >= 0) this.#scrollTo(this.rows[number].right[1]);
  }

  /** Scrolls the target only: on a telephone, the window has to stay at the source. */
  #scrollTo(span) {
    const { target } = this;
    const box = span.getBoundingClientRect(), view = target.getBoundingClientRect();
    if (box.top < view.top) target.scrollTop -= view.top - box.top;
    else if (box.bottom > view.bottom) {
      target.scrollTop += Math.min(box.bottom - view.bottom, box.top - view.top);
    }
  }

  /** The number of the row whose sentence is at a point of the source, or -1. */
  #rowAt(x, y) {
    let low = 0, high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.rows[middle].left[1].getBoundingClientRect().bottom < y) low = middle + 1;
      else high = middle;
    }
    for (; low < this.rows.length; low++) {
      const span = this.rows[low].left[1];
      if (span.getBoundingClientRect().top > y) return -1;
      if (covers(span, x, y)) return low;
    }
    return -1;
  }

  // --- Keyboard ----------------------------------------------------------------------------------

  /** Moves the keyboard's focus to another sentence. */
  focus(number) {
    if (number < 0 || number >= this.rows.length) return;
    this.#setTabStop(number);
    this.rows[number].right[1].focus();
  }

  #setTabStop(number) {
    for (const row of [this.rows[this.tabStop], this.rows[number]]) {
      if (row) row.right[1].tabIndex = row === this.rows[number] ? 0 : -1;
    }
    this.tabStop = Math.max(number, 0);
  }
}

/** A row with elements; until its translation is there, it shows a former one. */
function makeRow({ text, before, start, end }, former) {
  const left = [document.createTextNode(before), document.createElement("span")];
  const right = [document.createTextNode(""), document.createElement("span")];
  left[1].className = right[1].className = "sentence";
  right[1].classList.add("waiting");
  right[1].tabIndex = -1;
  left[1].textContent = text;
  right[1].textContent = former ?? "…";
  return { text, before, start, end, left, right, hasWords: false };
}

function insert(parent, pairs, next) {
  const fragment = document.createDocumentFragment();
  for (const pair of pairs) fragment.append(...pair);
  parent.insertBefore(fragment, next);
}

/** Spans of the words on both sides, made when they are first needed; null without alignment. */
function wordsOf(row) {
  const { translation, shown, left, right } = row;
  if (!translation?.alignment || shown !== translation.text) return null;
  if (!row.hasWords) {
    row.words = [
      wrapWords(left[1], row.text, translation.source_words),
      wrapWords(right[1], shown, translation.words),
    ];
    row.hasWords = true;
  }
  return row.words;
}

/** Puts each word of a text into a span; null for a word that is not found in the text. */
function wrapWords(parent, text, words) {
  let end = 0;
  const nodes = [];
  const spans = words.map((word) => {
    const start = word ? text.indexOf(word, end) : -1;
    if (start < 0) return null;
    const span = document.createElement("span");
    span.className = "word";
    span.textContent = word;
    nodes.push(text.slice(end, start), span);
    end = start + word.length;
    return span;
  });
  parent.replaceChildren(...nodes, text.slice(end));
  return spans;
}

const covers = (element, x, y) =>
  [...element.getClientRects()].some(
    ({ left, right, top, bottom }) => left <= x && x <= right && top <= y && y <= bottom,
  );
