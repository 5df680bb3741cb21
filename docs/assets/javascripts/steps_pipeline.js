// Stages over ticks: which micro-batch each stage has, and where it waits.

import { html } from "./svg.js";

const WORDS = { en: { stage: "Stage" }, zh: { stage: "阶段" } };

export function drawPipeline(data, current, language) {
  const { plan } = data.frames[current];
  const grid = html("div", { class: "ticks", style: `--columns:${plan[0].length}` });
  plan.forEach((row, stage) => {
    for (const batch of row) {
      const kind = batch === null ? "ticks__cell--idle" : `ticks__cell--${batch % 8}`;
      const name = `${WORDS[language].stage} ${stage}`;
      grid.append(html("span", { class: `ticks__cell ${kind}`, title: name }, batch === null ? "" : String(batch + 1)));
    }
  });
  return html("div", {}, html("p", { class: "steps__label" }, `${WORDS[language].stage} 0 – ${plan.length - 1}`), grid);
}
