// What is wrong, said in place, and how it goes on.

/** Changes a text if it differs, so that it is read aloud once. */
export function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export class Notices {
  /** `notice` has `text`, `countdown`, the button `retry`, and the form `keyForm`. */
  constructor({ notice, text, countdown, retry, keyForm }) {
    Object.assign(this, { notice, text, countdown, retry, keyForm });
    this.wait = this.wait.bind(this);
  }

  hide() {
    this.notice.hidden = true;
    show(this.text, "");
    show(this.countdown, "");
  }

  /** Says what is wrong. A server that needs a key is given one here. */
  report(error) {
    this.notice.hidden = false;
    show(this.text, error.message);
    show(this.countdown, "");
    this.keyForm.hidden = !error.needsKey;
    this.retry.hidden = true;
  }

  /** Waits as long as the server says, or until "Try now" is pressed. */
  wait(error, signal) {
    this.report(error);
    this.retry.hidden = false;
    let seconds = Math.ceil(error.retrySeconds);
    const count = () => show(this.countdown, `Trying again in ${seconds} s.`);
    count();
    return new Promise((resolve, reject) => {
      const end = (settle) => {
        clearInterval(interval);
        this.retry.onclick = null;
        signal?.removeEventListener("abort", abort);
        settle();
      };
      const abort = () => {
        show(this.countdown, "");
        this.retry.hidden = true;
        end(() => reject(signal.reason));
      };
      const interval = setInterval(() => (--seconds > 0 ? count() : end(resolve)), 1000);
      this.retry.onclick = () => end(resolve);
      signal?.addEventListener("abort", abort);
    });
  }
}
