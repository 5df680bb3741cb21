// The calculator page: a form, and what `calculator.js` makes of it. The inputs live in the address,
// so that a result can be sent to somebody.

import { compute, faults } from "./calculator.js";
import { texts as textsIn } from "./calculator_texts.js";
import { rooflinePlot } from "./roofline.js";
import { bytes, count, digits, flops, html, seconds } from "./svg.js";

const DEFAULTS = {
  model: "llama-3-8b", device: "h100", gpus: 1, weights: "bf16", cache: "bf16", operands: "bf16",
  prompt: 2048, output: 256, cached: 0, batch: 32, utilization: null, efficiency: 1,
};
const CHOICES = ["model", "device", "weights", "cache", "operands"];

async function start(root) {
  const texts = textsIn(root.dataset.language);
  const tables = await (await fetch(root.dataset.calculator)).json();
  const defaults = { ...DEFAULTS, utilization: tables.default_utilization };
  if (!Object.hasOwn(tables.models, defaults.model)) defaults.model = Object.keys(tables.models)[0];
  const input = { ...defaults, ...fromAddress(defaults, tables) };
  const form = html("form", { class: "calculator__form" });
  const output = html("div", { class: "calculator__output", "aria-live": "polite" });
  const fields = {};
  for (const name of Object.keys(defaults)) {
    const field = makeField(name, input, tables, texts);
    fields[name] = field;
    form.append(field.label);
  }
  const reset = html("button", { type: "button", class: "md-button" }, texts.reset);
  reset.addEventListener("click", () => {
    for (const name of Object.keys(defaults)) fields[name].control.value = defaults[name];
    update();
  });
  form.append(reset);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", update);
  root.replaceChildren(form, output);

  function update() {
    for (const [name, { control }] of Object.entries(fields)) {
      input[name] = CHOICES.includes(name) ? control.value : Number(control.value || "NaN");
    }
    const wrong = faults(tables, input);
    for (const [name, { control, message }] of Object.entries(fields)) {
      control.setAttribute("aria-invalid", String(name in wrong));
      message.textContent = name in wrong ? texts.fault[wrong[name]] : "";
    }
    toAddress(input, defaults);
    const result = Object.keys(wrong).length === 0 ? compute(tables, input) : null;
    // Of wrong inputs there is no result, and that of the inputs before is not theirs.
    output.replaceChildren(...(result ? report(result, input, tables, texts) : []));
    root.result = result; // for those who want all digits: document.querySelector(...).result
  }
  update();
}

function makeField(name, input, tables, texts) {
  const id = `calculator-${name}`;
  const message = html("span", { class: "calculator__fault", id: `${id}-fault` });
  let control;
  if (CHOICES.includes(name)) {
    control = html("select", { id, name });
    for (const [value, title] of options(name, tables)) control.append(html("option", { value }, title));
    control.value = input[name];
  } else {
    const share = name === "utilization" || name === "efficiency";
    control = html("input", {
      id, name, type: "number", value: input[name],
      min: share ? 0.05 : name === "cached" ? 0 : 1, max: share ? 1 : null, step: share ? 0.01 : 1,
    });
  }
  control.setAttribute("aria-describedby", message.id);
  return { control, message, label: html("label", { for: id }, html("span", {}, texts[name]), control, message) };
}

function options(name, tables) {
  if (name === "model") return Object.entries(tables.models).map(([key, one]) => [key, one.title]);
  if (name === "device") return Object.entries(tables.devices).map(([key, one]) => [key, one.title]);
  if (name === "weights") return Object.keys(tables.weight_formats).map((key) => [key, key]);
  if (name === "cache") {
    const any = Object.values(tables.models)[0];
    return Object.keys(any.cache_bits_per_element).map((key) => [key, key]);
  }
  return Object.keys(operandKinds(tables)).map((key) => [key, key]);
}

// Of every GPU's peaks: a type that this GPU lacks is a fault that the page names.
function operandKinds(tables) {
  return Object.assign({}, ...Object.values(tables.devices).map((one) => one.peak_flops_per_s));
}

function report(result, input, tables, texts) {
  const model = tables.models[input.model];
  const parts = [
    html("h3", {}, texts.memory),
    memoryBar(result, texts),
    definitions([
      [texts.parameters, model.parameters === model.active_parameters
        ? count(model.parameters)
        : `${count(model.parameters)} (${texts.active}: ${count(model.active_parameters)})`],
      [texts.weightBytes, bytes(result.weights.total_bytes)],
      [texts.perToken, bytes(result.bytes_per_token)],
      [texts.perRequest, bytes(result.request_bytes)],
      [texts.fit, digits(result.capacity.num_requests)],
      [texts.fewest, digits(result.fewest_gpus)],
    ]),
    html("h3", {}, texts.time),
    html("p", { class: "calculator__note" }, texts.overlap),
    timeBars(texts.prefill, result.prefill, texts),
    timeBars(texts.decode, result.decode, texts),
    definitions([
      [texts.ttft, `${seconds(result.prefill.time_s)}, ${bound(result.prefill, texts)}`],
      [texts.tpot, `${seconds(result.decode.time_s)}, ${bound(result.decode, texts)}`],
      [texts.throughput, digits(result.tokens_per_s)],
      [texts.crossover, crossover(result, model, texts)],
    ]),
    html("h3", {}, texts.roofline),
    rooflinePlot(result, texts),
  ];
  const warning = !(result.capacity.cache_bytes > 0)
    ? texts.fitsNot
    : result.batch_bytes > result.capacity.cache_bytes ? texts.batchFitsNot : "";
  if (warning) parts.splice(1, 0, html("p", { class: "calculator__warning" }, warning));
  return parts;
}

const bound = (step, texts) => (step.bound === "compute" ? texts.boundCompute : texts.boundMemory);

function crossover(result, model, texts) {
  if (result.crossover_batch !== null) return digits(Math.ceil(result.crossover_batch));
  return model.experts ? texts.neverExperts : texts.never;
}

function definitions(rows) {
  const list = html("dl", { class: "calculator__numbers" });
  for (const [name, value] of rows) list.append(html("div", {}, html("dt", {}, name), html("dd", {}, value)));
  return list;
}

function memoryBar(result, texts) {
  const budget = result.capacity.budget_bytes;
  const used = result.weights.total_bytes + result.batch_bytes;
  const whole = Math.max(budget, used);
  const parts = [
    ["weights", texts.weightBytes, result.weights.total_bytes],
    ["kv", texts.kv, result.batch_bytes],
  ];
  if (budget > used) parts.push(["free", texts.free, budget - used]);
  const bar = stacked(parts, whole, bytes);
  const note = used > budget ? `${texts.over} ${bytes(used - budget)}` : "";
  bar.append(html("p", { class: "calculator__note" }, `${texts.budget} ${bytes(budget)}${note ? `; ${note}` : ""}`));
  return bar;
}

function timeBars(title, step, texts) {
  const readS = step.memory_s / (step.weight_bytes + step.cache_bytes);
  const whole = Math.max(step.compute_s, step.memory_s);
  const block = html("div", { class: "calculator__step" }, html("h4", {}, `${title}: ${seconds(step.time_s)}`));
  block.append(
    stacked([
      ["weights", texts.readWeights, step.weight_bytes * readS],
      ["kv", texts.readCache, step.cache_bytes * readS],
    ], whole, seconds),
    stacked([["compute", `${texts.arithmetic} (${flops(step.flops)})`, step.compute_s]], whole, seconds),
  );
  return block;
}

function stacked(parts, whole, format) {
  const bar = html("div", { class: "bar" });
  const legend = html("ul", { class: "bar__legend" });
  for (const [kind, title, value] of parts) {
    if (value <= 0) continue;
    bar.append(html("span", { class: `bar__part bar__${kind}`, style: `width:${(100 * value) / whole}%` }));
    legend.append(html("li", { class: `bar__key bar__${kind}` }, `${title} ${format(value)}`));
  }
  return html("div", { class: "bars" }, bar, legend);
}

function fromAddress(defaults, tables) {
  const given = {};
  const known = {
    model: tables.models, device: tables.devices, weights: tables.weight_formats,
    cache: Object.values(tables.models)[0].cache_bits_per_element, operands: operandKinds(tables),
  };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!Object.hasOwn(defaults, name)) continue;
    if (CHOICES.includes(name)) {
      if (Object.hasOwn(known[name], value)) given[name] = value;
    } else if (value !== "" && Number.isFinite(Number(value))) given[name] = Number(value);
  }
  return given;
}

function toAddress(input, defaults) {
  const changed = Object.entries(input).filter(([name, value]) => name in defaults && value !== defaults[name]);
  const text = new URLSearchParams(changed).toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
}

const root = document.querySelector("[data-calculator]");
if (root) start(root);
