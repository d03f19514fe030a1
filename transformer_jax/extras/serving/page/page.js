// The page: text on the left, its translation on the right, sentence by sentence.

import { Alternatives } from "./alternatives.js";
import * as files from "./files.js";
import { Languages } from "./languages.js";
import { Notices, show } from "./notices.js";
import { Panes } from "./panes.js";
import { ask, askJson, patiently, setKey } from "./server.js";
import { read, write } from "./storage.js";
import { Translations } from "./translation.js";

const TYPING_MS = 250; // without a key, before a translation is asked for
const MAX_CHARS = 200_000; // of a text
const LONG = 300; // characters from which letters are smaller
const SPOKEN = 400; // most characters that a screen reader is given at once
const SPOKEN_MS = 1000; // after a translation; a key in between keeps it silent
const SHADED = "shaded"; // in this browser: whether confidence is shown

const elements = Object.fromEntries(
  [...document.querySelectorAll("[id]")].map((element) => [element.id, element]),
);
const { source, target, marks, progress } = elements;
const languages = new Languages({ ...elements, modelChoice: elements["model-choice"] });
const panes = new Panes(elements);
const notices = new Notices({
  notice: elements.notice,
  text: elements["notice-text"],
  countdown: elements["notice-wait"],
  retry: elements.retry,
  keyForm: elements["key-form"],
});
const translations = new Translations(notices.wait);
const alternatives = new Alternatives(elements, panes, (row) =>
  translations.alternatives(row.text, row.translation, running.signal));

let running = new AbortController(); // of the translation that is on its way
let timer = 0;
let speaking = 0; // timer of what a screen reader is given
let isDone = false; // whether the target has the translation of the source
let fileName = ""; // of the file that the text is from

// --- Translating ---------------------------------------------------------------------------------

/** Translates soon. What is on its way is cancelled, which frees its places on the server. */
function schedule(delay = TYPING_MS) {
  clearTimeout(timer);
  clearTimeout(speaking);
  running.abort();
  isDone = false;
  panes.light(-1);
  const { length } = source.value;
  elements.count.textContent = `${length.toLocaleString("en")} character${length === 1 ? "" : "s"}`;
  elements.card.classList.toggle("long", length > LONG);
  elements.clear.hidden = !length;
  timer = setTimeout(translate, delay);
}

async function translate() {
  const controller = (running = new AbortController());
  const { signal } = controller;
  alternatives.hide();
  say("");
  target.setAttribute("aria-busy", "true");
  try {
    await translateText(source.value.toWellFormed?.() ?? source.value, signal);
  } catch (error) {
    if (!signal.aborted) notices.report(error);
  } finally {
    if (!signal.aborted) {
      target.setAttribute("aria-busy", "false");
      progress.hidden = true;
    }
  }
}

async function translateText(text, signal) {
  if (text.length > MAX_CHARS) {
    const most = MAX_CHARS.toLocaleString("en");
    throw new Error(`This page takes ${most} characters at once. Translate the text in parts.`);
  }
  if (!text.trim()) {
    languages.forget();
    return finish([], text);
  }
  if (!languages.models.length) return; // they are on their way, and this is called again then
  await patiently(() => languages.detect(text, signal), notices.wait, signal);
  const { chosenModel: model, source: from, target: to } = languages;
  translations.job = { model, source: from, target: to };
  source.lang = from;
  const sentences = await translations.split(text, signal);
  if (signal.aborted) return;
  panes.show(sentences, text, languages.target);
  scroll();
  panes.update((one) => translations.of(one));
  progress.value = 0;
  await translations.translate(sentences, signal, (done, total) => {
    notices.hide();
    progress.hidden = total < 8;
    progress.value = done / total;
    updateSoon(signal);
  });
  if (!signal.aborted) finish(sentences, text);
}

function finish(sentences, text) {
  if (!sentences.length) panes.show([], text, languages.target);
  notices.hide();
  panes.update((one) => translations.of(one));
  elements.copy.disabled = elements.save.disabled = !panes.text;
  elements.save.classList.toggle("ready", Boolean(fileName && sentences.length));
  if (fileName && sentences.length) say(`${fileName} is translated.`);
  isDone = true;
  speaking = setTimeout(speak, SPOKEN_MS);
}

/** Gives the translation to a screen reader. */
function speak() {
  const result = panes.text, isShort = result.length <= SPOKEN;
  elements.spoken.lang = isShort ? languages.target : "en";
  elements.spoken.textContent = isShort ? result : `${panes.rows.length} sentences are translated.`;
}

let frame = 0;
function updateSoon(signal) {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    if (!signal.aborted) panes.update((one) => translations.of(one));
  });
}

// --- Files ---------------------------------------------------------------------------------------

async function openFile(file, ...others) {
  if (!file) return;
  elements["file-notice"].hidden = true;
  try {
    if (others.length) throw new Error("One file at a time, please: these are several.");
    const text = await files.readText(file, MAX_CHARS);
    fileName = file.name;
    source.value = text;
    source.scrollTop = 0;
    schedule(0);
  } catch (error) {
    show(elements["file-notice"], error.message);
    elements["file-notice"].hidden = false;
  }
}

/** Whether the translation is complete; says so where it is not. */
function isComplete() {
  if (!isDone) say("The translation is not complete yet.");
  return isDone;
}

async function copy() {
  if (!isComplete()) return;
  try {
    await files.copy(panes.text);
    say("Copied");
  } catch (error) {
    say(error.message);
  }
}

// --- Events --------------------------------------------------------------------------------------

function say(text) {
  elements.status.textContent = text;
}

function scroll() {
  marks.scrollTop = source.scrollTop;
}

const numberOf = (element) => Number(element.closest?.("[data-row]")?.dataset.row ?? -1);

function listenToSource() {
  source.addEventListener("input", () => {
    elements["file-notice"].hidden = true;
    schedule();
  });
  source.addEventListener("beforeinput", () => {
    const { selectionStart: start, selectionEnd: end, value } = source;
    if (end - start === value.length) fileName = ""; // all of the text is replaced
  });
  source.addEventListener("scroll", scroll);
  const atCaret = () => panes.lightPlace(source.selectionStart);
  source.addEventListener("click", atCaret);
  source.addEventListener("keyup", (event) => {
    if (/^(Arrow|Page|Home|End)/.test(event.key)) atCaret();
  });
  elements.clear.addEventListener("click", () => {
    source.value = fileName = "";
    schedule(0);
    source.focus();
  });
}

function listenToPointer() {
  let next = 0;
  for (const pane of [source, target]) {
    pane.addEventListener("pointermove", ({ clientX, clientY, target: element }) => {
      cancelAnimationFrame(next);
      next = requestAnimationFrame(() => panes.lightAt(clientX, clientY, element));
    });
    pane.addEventListener("pointerleave", () => {
      cancelAnimationFrame(next);
      panes.light(-1);
    });
  }
}

function listenToTarget() {
  const open = (element) => alternatives.open(numberOf(element)).then(
    () => isDone && notices.hide(),
    (error) => error.name === "AbortError" || notices.report(error),
  );
  target.addEventListener("click", (event) => {
    if (getSelection().isCollapsed) open(event.target);
  });
  target.addEventListener("focusin", (event) => panes.light(numberOf(event.target)));
  target.addEventListener("focusout", () => panes.light(-1));
  target.addEventListener("keydown", (event) => {
    const number = numberOf(event.target);
    const moves = {
      ArrowRight: number + 1, ArrowDown: number + 1, ArrowLeft: number - 1, ArrowUp: number - 1,
      Home: 0, End: panes.rows.length - 1,
    };
    if (number < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) panes.focus(moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") open(event.target);
    else return;
    event.preventDefault();
  });
}

function listenToFiles() {
  elements.file.addEventListener("change", () => {
    openFile(...elements.file.files);
    elements.file.value = ""; // the same file may be opened again
  });
  let depth = 0; // dragenter and dragleave come for each element within
  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return; // text that is moved
      event.preventDefault();
      depth = { dragenter: depth + 1, dragover: depth, dragleave: depth - 1, drop: 0 }[name];
      elements.card.classList.toggle("dropping", depth > 0);
      if (name === "drop") openFile(...event.dataTransfer.files);
    });
  }
}

function listenToControls() {
  elements.from.addEventListener("change", () => {
    languages.forget();
    languages.fillTargets(languages.target);
    schedule(0);
  });
  elements.to.addEventListener("change", () => {
    languages.changed();
    schedule(0);
  });
  elements.model.addEventListener("change", () => schedule(0));
  elements.swap.addEventListener("click", () => {
    languages.swap();
    if (isDone) { // a part of a translation would replace all that was typed
      fileName = "";
      source.value = panes.text;
    }
    schedule(0);
  });
  elements.copy.addEventListener("click", copy);
  elements.save.addEventListener("click", () => {
    if (isComplete()) files.save(panes.text, files.translatedName(fileName, languages.target));
  });
  elements.shading.addEventListener("click", () =>
    setShading(elements.shading.getAttribute("aria-pressed") !== "true"));
  elements["key-form"].addEventListener("submit", (event) => {
    event.preventDefault();
    try {
      setKey(elements.key.value.trim());
      start();
    } catch (error) {
      notices.report(error);
    }
  });
}

function setShading(isOn) {
  elements.shading.setAttribute("aria-pressed", String(isOn));
  target.classList.toggle("shaded", isOn);
  elements.legend.hidden = !isOn;
  write("localStorage", SHADED, isOn ? "1" : "");
}

/** Asks which models there are, says how far the server's start is, and translates the text. */
async function start() {
  try {
    const { models } = await patiently(() => askJson("v1/models"), notices.wait);
    languages.setModels(models);
    await patiently(() => ask("readyz"), notices.wait);
    notices.hide();
    schedule(0);
  } catch (error) {
    notices.report(error);
  }
}

listenToSource();
listenToPointer();
listenToTarget();
listenToFiles();
listenToControls();
setShading(Boolean(read("localStorage", SHADED)));
start();
