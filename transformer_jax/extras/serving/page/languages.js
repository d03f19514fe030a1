// The choice of languages: which pairs the models have, their names, and detection.

import { askJson } from "./server.js";
import { read, write } from "./storage.js";

export const AUTO = "auto";
const STORED = "languages"; // the last choice, in this browser
const SAMPLE = 2000; // characters that tell the language
const WITHOUT_SPACES = new Set(["zh", "ja", "th", "lo", "km", "my", "bo"]);
const names = new Intl.DisplayNames(["en"], { type: "language" });

/** The English name of a code such as `fr`, `pt-BR` or `fra_Latn`; else the code. */
export function nameOf(code) {
  try {
    return names.of(code.replaceAll("_", "-"));
  } catch {
    return code;
  }
}

/** Whether sentences of a language are written with spaces between them. */
export function hasSpaces(code) {
  try {
    return !WITHOUT_SPACES.has(new Intl.Locale(code.replaceAll("_", "-")).language);
  } catch {
    return true;
  }
}

export class Languages {
  /** The menus `from`, `to` and `model`, the last one in `modelChoice`; `swap` is a button. */
  constructor({ from, to, swap, model, modelChoice }) {
    Object.assign(this, { from, to, swapButton: swap, model, modelChoice });
    this.models = [];
    this.detected = this.sample = "";
  }

  /** Fills the menus with what the models translate. */
  setModels(models) {
    this.models = models;
    const codes = sorted(new Set(models.flatMap((model) => model.source_langs)));
    const options = codes.map((code) => new Option(nameOf(code), code));
    if (codes.length > 1) options.unshift(new Option("Detect language", AUTO));
    const [from, to] = this.#stored();
    this.from.replaceChildren(...options);
    select(this.from, from);
    this.fillTargets(to);
  }

  /** The language of the text; "" where it is not detected yet. */
  get source() {
    return this.from.value === AUTO ? this.detected : this.from.value;
  }

  get target() {
    return this.to.value;
  }

  /** The model that translates, as `/v1/models` describes it. */
  get chosenModel() {
    const fitting = this.#fitting(this.source, this.target);
    return fitting.find((model) => model.name === this.model.value) ?? fitting[0] ?? this.models[0];
  }

  /** Fills the menu of targets, and selects `wanted` if it is one. */
  fillTargets(wanted) {
    const models = this.source ? this.#fitting(this.source) : this.models;
    const codes = new Set(models.flatMap((model) => model.target_langs));
    if (codes.size > 1) codes.delete(this.source);
    this.to.replaceChildren(...sorted(codes).map((code) => new Option(nameOf(code), code)));
    select(this.to, wanted);
    this.changed();
  }

  /** Adapts the other controls to the languages. */
  changed() {
    const fitting = this.#fitting(this.source, this.target);
    const former = this.model.value;
    this.model.replaceChildren(...fitting.map(({ name }) => new Option(name)));
    select(this.model, former);
    this.modelChoice.hidden = fitting.length < 2;
    this.swapButton.disabled = !this.source || !this.#fitting(this.target, this.source).length;
    write("localStorage", STORED, JSON.stringify([this.from.value, this.to.value]));
  }

  /** Exchanges the languages. */
  swap() {
    const [source, target] = [this.source, this.target];
    this.detected = "";
    this.from.value = target;
    this.fillTargets(source);
  }

  /** Detects the language of a text, if that is chosen. */
  async detect(text, signal) {
    if (this.from.value !== AUTO) return;
    const sample = text.slice(0, SAMPLE);
    if (this.detected && sample === this.sample) return;
    const [best] = await askJson("detect", { q: sample }, signal);
    this.sample = sample;
    const label = `${nameOf(best.language)} (detected)`;
    this.from.querySelector(`[value="${AUTO}"]`).textContent = label;
    if (best.language === this.detected) return;
    this.detected = best.language;
    this.fillTargets(this.target);
  }

  /** Forgets the language that was detected. */
  forget() {
    this.detected = "";
    const option = this.from.querySelector(`[value="${AUTO}"]`);
    if (option) option.textContent = "Detect language";
    this.swapButton.disabled ||= !this.source;
  }

  #fitting(source, target) {
    return this.models.filter(
      ({ source_langs: sources, target_langs: targets }) =>
        sources.includes(source) && (target === undefined || targets.includes(target)),
    );
  }

  #stored() {
    try {
      return JSON.parse(read("localStorage", STORED)) ?? [];
    } catch {
      return [];
    }
  }
}

const sorted = (codes) => [...codes].sort((a, b) => nameOf(a).localeCompare(nameOf(b)));

function select(menu, value) {
  if ([...menu.options].some((option) => option.value === value)) menu.value = value;
}
