// Requests to the server, and what to do where it refuses one.

import { read, write } from "./storage.js";

const RETRY_SECONDS = 5; // where the server does not say when to ask again
const RETRIED = new Set([429, 503, 504]);
const RETRIED_CODES = new Set(["deadline", "draining"]); // of events
const SPREAD = 0.3; // share of a wait that is added at random, so that pages do not ask together
const KEY = "api_key"; // in the storage of this tab, which ends with the tab

/** What the server refused. `retrySeconds` is set where asking again may help. */
export class ServerError extends Error {
  constructor(message, { retrySeconds = 0, needsKey = false } = {}) {
    super(message);
    this.retrySeconds = retrySeconds * (1 + SPREAD * Math.random());
    this.needsKey = needsKey;
  }
}

const unreachable = () =>
  new ServerError("The server cannot be reached.", { retrySeconds: RETRY_SECONDS });

/** Rejects with a network failure as a `ServerError`, and with other errors as they are. */
const explained = (error) => Promise.reject(error instanceof TypeError ? unreachable() : error);

/** Sends a key from now on. Throws where it cannot be one. */
export function setKey(key) {
  // A header takes no other characters; `fetch` fails on them as it does without a network.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    throw new ServerError("A key has only letters, digits and signs of English, without spaces.", {
      needsKey: true,
    });
  }
  write("sessionStorage", KEY, key);
}

/** Sends `body` as JSON, or asks without one, and returns the answer of status 200. */
export async function ask(path, body, signal) {
  const headers = {};
  const key = read("sessionStorage", KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const method = body ? "POST" : "GET";
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) })
    .catch(explained);
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  const seconds = Number(answer.headers.get("Retry-After")) || RETRY_SECONDS;
  throw new ServerError(error?.message ?? error ?? `The server answered ${answer.status}.`, {
    retrySeconds: RETRIED.has(answer.status) ? seconds : 0,
    needsKey: answer.status === 401 || answer.status === 403,
  });
}

export const askJson = async (...request) => (await ask(...request)).json();

/** The server-sent events of an answer, as `{name, data}`. An event `error` is thrown. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read().catch(explained);
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (!event) continue;
        if (event.name === "error") throw streamError(event.data.error);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The name and data of an event; null of a comment, which keeps a connection open. */
function parse(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
  }
  return fields.data ? { name: fields.event, data: JSON.parse(fields.data) } : null;
}

const streamError = ({ message, code }) =>
  new ServerError(message, { retrySeconds: RETRIED_CODES.has(code) ? RETRY_SECONDS : 0 });

/**
 * The result of `work`, which is tried until it succeeds or fails for good.
 * Between two attempts `wait(error, signal)` decides how long that takes.
 */
export async function patiently(work, wait, signal) {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!error.retrySeconds || signal?.aborted) throw error;
      await wait(error, signal);
    }
  }
}
