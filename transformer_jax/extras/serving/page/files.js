// Files that come in, and translations that go out.

/** The text of a file in UTF-8, or UTF-16 with its mark. Throws where it is none, or too long. */
export async function readText(file, maxChars) {
  const limit = maxChars.toLocaleString("en");
  const tooLong = new Error(`${file.name} is too large: this page takes ${limit} characters.`);
  if (file.size > 4 * maxChars + 3) throw tooLong; // a character has at most four bytes
  const buffer = await file.arrayBuffer().catch(() => {
    throw new Error(`${file.name} cannot be read. A folder cannot be translated.`);
  });
  const bytes = new Uint8Array(buffer);
  const mark = `${bytes[0]} ${bytes[1]}`;
  const encoding = { "255 254": "utf-16le", "254 255": "utf-16be" }[mark] ?? "utf-8";
  let text;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) {
    throw new Error(`${file.name} is no text in UTF-8 or UTF-16. Save it as UTF-8 first.`);
  }
  if (text.length > maxChars) throw tooLong;
  if (!text.trim()) throw new Error(`${file.name} is empty.`);
  return text.replace(/\r\n?/g, "\n");
}

/** The name of a translation's file: `notes.fr.txt` of `notes.txt`. */
export function translatedName(name, language) {
  const [, stem, extension] = /^(.*?)(\.[^.]*)?$/.exec(name || "translation.txt");
  return `${stem}.${language}${extension ?? ".txt"}`;
}

/** Downloads a text. */
export function save(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // the download may begin later
}

/** Copies a text. A page of plain HTTP from another machine has no clipboard of its own. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.body.appendChild(document.createElement("textarea"));
  field.className = "hidden";
  field.value = text;
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("The browser does not allow copying; select the text instead.");
}
