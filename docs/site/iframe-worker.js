// The search runs in a worker, and browsers start no worker from a file: there its script runs in
// a hidden frame instead. Over http nothing of this is used.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write("<!doctype html><head></head>");
      inside.document.close();
      // later, as messages of a worker come: who sends one is not done with what it does
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href);
      this.loaded = new Promise((loaded, failed) => {
        script.onload = loaded;
        script.onerror = failed;
      });
      this.loaded.catch((event) => this.onerror?.(event));
      inside.document.head.append(script);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      const deliver = () => this.frame.contentWindow?.onmessage({ data: copy });
      this.loaded.then(() => setTimeout(deliver), () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
