// From a text to translations of its sentences: split, ask for what is not known, remember.

import { ask, askJson, events, patiently, ServerError } from "./server.js";

const TEXTS_AT_ONCE = 64; // sentences of a request
const REMEMBERED = 1_000_000; // characters of texts and keys

export class Translations {
  /**
   * `wait(error, signal)` decides how long to wait before a request is sent again.
   */
  constructor(wait) {
    this.wait = wait;
    this.known = new Memory(); // of languages and sentence: its translation
    this.lines = new Memory(); // of languages and line: its sentences
    this.job = null; // {model, source, target} of the text that is translated
  }

  of(sentence) {
    return this.known.get(this.#key(sentence));
  }

  #key(text) {
    const { model, source, target } = this.job;
    return `${model.name}\n${source}\n${target}\n${text}`;
  }

  #request(fields) {
    const { model, source, target } = this.job;
    return { model: model.name, source_lang: source, target_lang: target, ...fields };
  }

  /** The sentences of a text, as `{text, before, start, end}`. `before` is what precedes one. */
  async split(text, signal) {
    const { max_chars: maxChars, max_texts: maxTexts } = this.job.model.limits;
    const parts = [...partsOf(text, maxChars)];
    const missing = [...new Set(parts.map((part) => part.text))]
      .filter((line) => !this.lines.has(this.#key(line)));
    for (const texts of groups(missing, maxTexts, maxChars)) {
      const body = this.#request({ texts });
      const request = () => askJson("v1/sentences", body, signal);
      const answer = await patiently(request, this.wait, signal);
      answer.texts.forEach((found, index) => this.lines.set(this.#key(texts[index]), found));
    }
    const sentences = [];
    let end = 0;
    for (const part of parts) {
      for (const one of this.lines.get(this.#key(part.text))) {
        const start = part.start + one.start, before = text.slice(end, start);
        end = part.start + one.end;
        sentences.push({ text: one.text, before, start, end });
      }
    }
    this.lines.prune();
    return sentences;
  }

  /** Translates what is not known yet; `onTranslation(done, total)` is called after each. */
  async translate(sentences, signal, onTranslation) {
    const { max_chars: maxChars, max_texts: maxTexts } = this.job.model.limits;
    const isMissing = (text) => !this.known.has(this.#key(text));
    const missing = [...new Set(sentences.map(({ text }) => text))].filter(isMissing);
    const tooLong = missing.find((text) => text.length > maxChars);
    if (tooLong) {
      const limit = maxChars.toLocaleString("en");
      throw new ServerError(`A sentence is longer than ${limit} characters, this server's limit.`);
    }
    let done = 0;
    for (const group of groups(missing, Math.min(maxTexts, TEXTS_AT_ONCE), maxChars)) {
      await patiently(async () => {
        const texts = group.filter(isMissing); // after a failure: the rest
        if (!texts.length) return;
        const body = this.#request({ texts, stream: true, alignment: this.#canAlign });
        for await (const { name, data } of events(await ask("v1/translate", body, signal))) {
          if (name !== "translation") continue;
          this.known.set(this.#key(texts[data.index]), data);
          onTranslation(++done, missing.length);
        }
        if (texts.some(isMissing)) {
          throw new ServerError("The server ended its answer early.", { retrySeconds: 1 });
        }
      }, this.wait, signal);
    }
    this.known.prune();
  }

  /** All translations of a sentence, best first; `translation` is the one of `translate`. */
  async alternatives(sentence, translation, signal) {
    const count = Math.min(3, this.job.model.most_alternatives);
    if (!translation.others && count > 0) {
      const body = this.#request({ texts: [sentence], n_best: 1 + count });
      const [best] = (await askJson("v1/translate", body, signal)).translations;
      translation.others = [best, ...best.alternatives].map(({ text }) => text);
    }
    return [...new Set([translation.text, ...(translation.others ?? [])])];
  }

  get #canAlign() {
    return this.job.model.alignment !== false;
  }
}

/** Lines of a text, which end sentences; a line beyond `limit` characters in several parts. */
function* partsOf(text, limit) {
  for (const { 0: line, index } of text.matchAll(/[^\n\r\u2028\u2029]+/g)) {
    for (let start = 0; start < line.length; ) {
      const end = start + lengthOfPart(line.slice(start, start + limit + 1), limit);
      yield { text: line.slice(start, end), start: index + start };
      start = end;
    }
  }
}

function lengthOfPart(text, limit) {
  if (text.length <= limit) return text.length;
  const part = text.slice(0, limit);
  const sentence = Math.max(...["。", ". ", "! ", "? "].map((mark) => part.lastIndexOf(mark)));
  const cut = 1 + Math.max(sentence, sentence < 0 ? part.lastIndexOf(" ") : -1);
  if (cut > 0) return cut;
  return /[\uD800-\uDBFF]$/.test(part) ? limit - 1 : limit; // not within a character
}

/** Lists of at most `maxTexts` texts that together have at most `maxChars` characters. */
function* groups(texts, maxTexts, maxChars) {
  let group = [], chars = 0;
  for (const text of texts) {
    if (group.length && (group.length === maxTexts || chars + text.length > maxChars)) {
      yield group;
      [group, chars] = [[], 0];
    }
    group.push(text);
    chars += text.length;
  }
  if (group.length) yield group;
}

/** Remembers values of texts, the last ones. */
class Memory extends Map {
  /** Forgets what is oldest, until the keys have as many characters as are remembered. */
  prune() {
    let chars = 0;
    for (const key of this.keys()) chars += key.length;
    for (const key of this.keys()) {
      if (chars <= REMEMBERED) return;
      chars -= key.length;
      this.delete(key);
    }
  }
}
