// Slots over steps, once for static and once for continuous batching, up to the step that is shown.

import { html } from "./svg.js";

const WORDS = {
  en: { static: "Static batching", continuous: "Continuous batching" },
  zh: { static: "静态批处理", continuous: "连续批处理" },
};

export function drawBatches(data, current, language) {
  const words = WORDS[language];
  const upTo = data.frames[current].step;
  const width = Math.max(data.static.length, data.continuous.length);
  const root = html("div", {});
  for (const mode of ["static", "continuous"]) {
    const grid = html("div", { class: "ticks", style: `--columns:${width}` });
    for (let slot = 0; slot < data.slots; slot++) {
      for (let step = 0; step < width; step++) grid.append(cell(data[mode], slot, step, upTo));
    }
    root.append(html("p", { class: "steps__label" }, words[mode]), grid);
  }
  return root;
}

function cell(steps, slot, step, upTo) {
  const found = step <= upTo && steps[step]?.find((one) => one.slot === slot);
  if (!found) {
    const idle = step <= upTo && step < steps.length;
    return html("span", { class: idle ? "ticks__cell ticks__cell--idle" : "ticks__cell" });
  }
  const kind = found.prompt ? " ticks__cell--prompt" : "";
  const name = String.fromCharCode(65 + found.request);
  return html("span", { class: `ticks__cell ticks__cell--${found.request % 8}${kind}` }, name);
}
