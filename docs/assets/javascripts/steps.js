// Plays a stepwise figure: buttons, arrow keys, a slider; frames come from a JSON file, and one
// module a kind of figure draws them. Without a wish for less motion it can play by itself.

import { drawBatches } from "./steps_batches.js";
import { drawBlockTables } from "./steps_block_tables.js";
import { drawFlashTiles } from "./steps_flash_tiles.js";
import { drawPipeline } from "./steps_pipeline.js";
import { drawPrefixChain } from "./steps_prefix_chain.js";
import { html } from "./svg.js";

const DRAW = {
  "block-tables": drawBlockTables,
  "batch-over-time": drawBatches,
  "flash-tiles": drawFlashTiles,
  "prefix-radix": drawPrefixChain,
  "pipeline-bubbles": drawPipeline,
};
const WORDS = {
  en: { previous: "Previous", next: "Next", play: "Play", pause: "Pause", step: "Step", of: "of" },
  zh: { previous: "上一步", next: "下一步", play: "播放", pause: "暂停", step: "步", of: "/" },
};
const FRAME_MS = 2600;

async function start(figure) {
  const language = figure.dataset.language in WORDS ? figure.dataset.language : "en";
  const words = WORDS[language];
  const data = await (await fetch(figure.dataset.steps)).json();
  const draw = DRAW[data.kind];
  const last = data.frames.length - 1;
  let current = 0;
  let timer = null;

  const stage = html("div", { class: "steps__stage" });
  const text = html("p", { class: "steps__text", "aria-live": "polite" });
  const counter = html("span", { class: "steps__count" });
  const previous = button(words.previous, "‹", () => show(current - 1, true));
  const next = button(words.next, "›", () => show(current + 1, true));
  const slider = html("input", { type: "range", min: 0, max: last, value: 0, "aria-label": words.step });
  slider.addEventListener("input", () => show(Number(slider.value), true));
  const controls = html("div", { class: "steps__controls" }, previous, next, slider, counter);
  let play = null;
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
    play = button(words.play, "▶", () => (timer === null ? begin() : stop()));
    controls.prepend(play);
  }
  figure.append(stage, text, controls);
  figure.setAttribute("role", "group");
  figure.tabIndex = 0;
  figure.addEventListener("keydown", (event) => {
    if (event.target === slider) return;
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last };
    if (event.key in moves) {
      event.preventDefault();
      show(moves[event.key], true);
    }
  });
  show(0, false);

  function show(wanted, byHand) {
    if (byHand) stop();
    current = Math.min(Math.max(wanted, 0), last);
    stage.replaceChildren(draw(data, current, language));
    text.textContent = data.frames[current].text[language];
    counter.textContent = `${current + 1} ${words.of} ${last + 1}`;
    slider.value = current;
    previous.disabled = current === 0;
    next.disabled = current === last;
    if (current === last) stop();
  }

  function begin() {
    if (current === last) show(0, false);
    label(play, words.pause, "❚❚");
    timer = setInterval(() => show(current + 1, false), FRAME_MS);
  }

  function stop() {
    if (timer === null) return;
    clearInterval(timer);
    timer = null;
    label(play, words.play, "▶");
  }
}

function button(name, sign, act) {
  const element = html("button", { type: "button" });
  label(element, name, sign);
  element.addEventListener("click", act);
  return element;
}

function label(element, name, sign) {
  element.textContent = sign;
  element.setAttribute("aria-label", name);
  element.title = name;
}

for (const figure of document.querySelectorAll("[data-steps]")) start(figure);
