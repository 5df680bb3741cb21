// The pool of blocks with what each holds, and under it every request's block table.

import { html } from "./svg.js";

const WORDS = {
  en: { pool: "Block pool", table: "Block table of", tokens: "tokens", cached: "cached", free: "free", refs: "refs", from: "copy of" },
  zh: { pool: "Block 池", table: "块表：", tokens: "个 token", cached: "缓存", free: "空闲", refs: "引用", from: "复制自" },
};

export function drawBlockTables(data, current, language) {
  const words = WORDS[language];
  const frame = data.frames[current];
  const before = current ? data.frames[current - 1] : null;
  const [source, target] = frame.copy ?? [];
  const holders = (id) => frame.tables.filter((table) => table.blocks.includes(id)).map((table) => table.name);
  const pool = html("div", { class: "pool" });
  for (const block of frame.blocks) {
    const own = holders(block.id);
    const state = block.refs > 1 ? "shared" : block.refs === 1 ? "used" : block.filled ? "cached" : "free";
    const old = before?.blocks.find((one) => one.id === block.id);
    const changed = old && (old.refs !== block.refs || old.filled !== block.filled);
    const slots = html("div", { class: "block__slots" });
    for (let index = 0; index < data.block_size; index++) {
      slots.append(html("span", { class: index < block.filled ? "slot slot--filled" : "slot" }));
    }
    const note = own.length ? `${own.join(", ")} · ${words.refs} ${block.refs}` : words[state];
    const notes = html("span", { class: "block__note" }, note);
    const isCopy = block.id === target;
    if (isCopy) notes.append(html("span", { class: "block__copy" }, `${words.from} ${source}`));
    pool.append(html(
      "div",
      { class: `block block--${state}${changed ? " block--changed" : ""}${isCopy ? " block--copy" : ""}` },
      html("span", { class: "block__id" }, String(block.id)), slots, notes,
    ));
  }
  const root = html("div", {}, html("p", { class: "steps__label" }, words.pool), pool);
  for (const table of frame.tables) {
    const row = html("div", { class: "table-row" });
    table.blocks.forEach((id, index) => {
      if (index) row.append(html("span", { class: "table-row__arrow", "aria-hidden": "true" }, "→"));
      row.append(html("span", { class: "table-row__cell" }, String(id)));
    });
    const name = `${words.table}${language === "en" ? " " : ""}${table.name} (${table.tokens} ${words.tokens})`;
    root.append(html("p", { class: "steps__label" }, name), row);
  }
  return root;
}
