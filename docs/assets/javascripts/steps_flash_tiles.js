// The score matrix by tiles, with the row statistics that are all that is kept of it.

import { html } from "./svg.js";

const WORDS = {
  en: { factor: "factor", acc: "acc", m: "m", l: "l", o: "O" },
  zh: { factor: "修正系数", acc: "acc", m: "m", l: "l", o: "O" },
};

export function drawFlashTiles(data, current, language) {
  const words = WORDS[language];
  const frame = data.frames[current];
  const [top, left] = frame.tile;
  const [height, width] = data.tile;
  const table = html("table", { class: "tiles" });
  const head = html("tr", {}, html("th", {}, ""));
  data.scores[0].forEach((_, key) => head.append(html("th", { scope: "col" }, `k${key}`)));
  for (const name of ["factor", "m", "l", "acc", "o"]) head.append(html("th", { scope: "col" }, words[name]));
  table.append(head);
  data.scores.forEach((scores, query) => {
    const row = html("tr", {}, html("th", { scope: "row" }, `q${query}`));
    scores.forEach((score, key) => {
      const inTile = query >= top && query < top + height && key >= left && key < left + width;
      const seen = frame.done[query][key];
      const state = inTile ? "tiles__now" : seen ? "tiles__done" : "tiles__later";
      row.append(html("td", { class: state }, inTile ? score.toFixed(2) : seen ? "·" : ""));
    });
    const { factor, m, l, acc, o } = frame.rows[query];
    for (const [name, value] of Object.entries({ factor, m, l, acc, o })) {
      row.append(html("td", { class: `tiles__value tiles__value--${name}` }, text(value)));
    }
    table.append(row);
  });
  return html("div", { class: "steps__scroll" }, table);
}

const text = (value) => (value === null ? "" : value.toFixed(3));
