// Searches the whole text of traces, one chunk at a time, so that the page stays responsive and its memory small.

/** The whole text of a trace in lower case. `detail` is as in traceNodes. */
function searchedText(detail) {
  const texts = detail.turns.flatMap((turn) =>
    turn.parts.flatMap((part) =>
      part.kind === "call" ? [part.code, part.input, part.output] : [sourceText(part.text)]
    )
  );
  return texts.join("\n").toLowerCase();
}

/** One search for words in some traces. `stop` ends it. */
class TextSearch {
  /**
   * @param traces numbers of traces
   * @param rows the columns of the index
   * @param words in lower case
   */
  constructor(traces, rows, words) {
    this.rows = rows;
    this.words = words;
    /** The traces with the words that the search has found so far. */
    this.found = new Set();
    this.chunks = new Map();
    for (const trace of traces) {
      const chunk = rows.chunk[trace];
      if (!this.chunks.has(chunk)) this.chunks.set(chunk, []);
      this.chunks.get(chunk).push(trace);
    }
    this.traces = traces.length;
    this.searched = 0;
    this.stopped = false;
  }

  get isRunning() {
    return !this.stopped && this.searched < this.traces;
  }

  stop() {
    this.stopped = true;
  }

  /** Searches one unpacked chunk at a time, and calls `onProgress` after each. */
  async run(onProgress) {
    for (const [chunk, traces] of this.chunks) {
      // Lets the browser draw and handle keys between two chunks.
      await new Promise((resolve) => setTimeout(resolve));
      if (this.stopped) return;
      const details = await unpack(`chunk-${chunk}`);
      if (this.stopped) return;
      for (const trace of traces) {
        if (searchedText(details[this.rows.place[trace]]).includes(this.words)) this.found.add(trace);
      }
      this.searched += traces.length;
      onProgress();
    }
  }
}
