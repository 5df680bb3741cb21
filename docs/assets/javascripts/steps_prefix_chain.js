// The prompt in blocks, found or not, over the tree of what the cache can find.

import { html } from "./svg.js";

const WORDS = {
  en: { prompt: "Prompt, in blocks", tree: "Findable blocks", hit: "found", miss: "computed", part: "not full: never findable", block: "block", salted: "salted", orphan: "its beginning was evicted" },
  zh: { prompt: "prompt 按块切分", tree: "可查找的 block", hit: "命中", miss: "重新计算", part: "未满：不可查找", block: "block", salted: "带 salt", orphan: "前面的块已被淘汰" },
};

export function drawPrefixChain(data, current, language) {
  const words = WORDS[language];
  const frame = data.frames[current];
  const prompt = html("div", { class: "chain__prompt" });
  for (const part of frame.prompt) {
    const state = part.hit ? "hit" : part.full ? "miss" : "part";
    prompt.append(html(
      "div",
      { class: `chain__block chain__block--${state}` },
      html("span", {}, part.words.join(" ")), html("small", {}, words[state]),
    ));
  }
  const known = new Set(frame.nodes.map((node) => node.hash));
  const roots = frame.nodes.filter((node) => node.parent === null || !known.has(node.parent));
  const tree = html("ul", { class: "chain" });
  for (const node of roots) tree.append(branch(node, frame.nodes, words));
  return html(
    "div", {},
    html("p", { class: "steps__label" }, words.prompt), prompt,
    html("p", { class: "steps__label" }, words.tree), tree,
  );
}

function branch(node, nodes, words) {
  const orphan = node.parent !== null && !nodes.some((one) => one.hash === node.parent);
  const notes = [`${words.block} ${node.block}`, node.hash];
  if (node.salted) notes.push(words.salted);
  if (orphan) notes.push(words.orphan);
  const item = html(
    "li", {},
    html("div", { class: "chain__block chain__block--kept" },
      html("span", {}, node.words.join(" ")), html("small", {}, notes.join(" · "))),
  );
  const children = nodes.filter((one) => one.parent === node.hash);
  if (children.length) {
    const list = html("ul", {});
    for (const child of children) list.append(branch(child, nodes, words));
    item.append(list);
  }
  return item;
}
