// Other translations of a sentence, to choose from.

export class Alternatives {
  /**
   * The section `details` has the list `alternatives` and the button `close`.
   * `find(row)` gives the texts of all translations of a row.
   */
  constructor({ details, alternatives: list, close, target }, panes, find) {
    Object.assign(this, { details, list, close, target, panes, find });
    this.number = -1; // of the sentence
    close.addEventListener("click", () => this.hide());
    details.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.hide();
    });
  }

  /** Offers the translations of a sentence. */
  async open(number) {
    const row = this.panes.rows[number];
    if (!row?.translation) return;
    this.hide();
    this.number = number;
    const span = row.right[1];
    span.classList.add("open");
    let texts;
    try {
      texts = await this.find(row);
    } catch (error) {
      span.classList.remove("open");
      throw error;
    }
    // Meanwhile another sentence may have been chosen, or other text be there.
    if (this.number !== number || this.panes.rows[number] !== row) return;
    this.list.replaceChildren(...texts.map((text) => this.#item(row, text)));
    if (texts.length < 2) this.list.append("This model has no other translation of it.");
    this.list.lang = this.panes.language;
    this.details.hidden = false;
    if (!this.target.contains(document.activeElement)) return; // the keyboard is used elsewhere
    (this.list.querySelector("button") ?? this.close).focus();
  }

  hide() {
    const span = this.panes.rows[this.number]?.right[1];
    span?.classList.remove("open");
    if (this.details.contains(document.activeElement)) span?.focus();
    this.details.hidden = true;
    this.number = -1;
  }

  #item(row, text) {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.dir = "auto";
    button.textContent = text;
    button.setAttribute("aria-pressed", String(text === row.shown));
    button.addEventListener("click", () => {
      this.panes.choose(row, text);
      for (const other of this.list.querySelectorAll("button")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
    });
    item.append(button);
    return item;
  }
}
