// What the calculator page computes: infra_lab.calculators in another language, function by function
// under the same names. tests/docs/test_calculator.py holds both to the same numbers.

const attentionPairs = (queries, cached) => queries * cached + (queries * (queries + 1)) / 2;

const expertsMet = (experts, active, tokens) => experts * (1 - (1 - active / experts) ** tokens);

export const bytesPerToken = (model, cacheFormat) =>
  (model.cache_elements_per_token * model.cache_bits_per_element[cacheFormat]) / 8;

export const numBlocks = (tokens, blockSize) => Math.ceil(tokens / blockSize);

export const cacheBytes = (model, tokens, requests, cacheFormat, blockSize) =>
  requests * numBlocks(tokens, blockSize) * blockSize * bytesPerToken(model, cacheFormat);

export function weightBytes(model, format) {
  const linear = (model.linear_parameters * format.bits_per_element) / 8;
  const rest = model.parameters - model.linear_parameters;
  const other = (rest * format.other_bits_per_element) / 8;
  return { linear_bytes: linear, other_bytes: other, total_bytes: linear + other };
}

export function readWeightBytes(model, tokens, format) {
  let elements = model.linear_parameters;
  if (model.experts) {
    const { num_experts, num_active, num_layers, parameters } = model.experts;
    elements -= num_layers * (num_experts - expertsMet(num_experts, num_active, tokens)) * parameters;
  }
  const head = (model.head_parameters * format.other_bits_per_element) / 8;
  return (elements * format.bits_per_element) / 8 + head;
}

export function prefillCost(model, tokens, cached, format, cacheFormat) {
  return {
    flops:
      2 * model.active_linear_parameters * tokens +
      2 * model.head_parameters +
      model.prefill_flops_per_pair * attentionPairs(tokens, cached),
    weight_bytes: readWeightBytes(model, tokens, format),
    cache_bytes: cached * bytesPerToken(model, cacheFormat),
  };
}

export function decodeCost(model, requests, context, format, cacheFormat) {
  return {
    flops:
      2 * (model.active_linear_parameters + model.head_parameters) * requests +
      model.decode_flops_per_pair * requests * context,
    weight_bytes: readWeightBytes(model, requests, format),
    cache_bytes: requests * context * bytesPerToken(model, cacheFormat),
  };
}

export function stepTime(cost, flopsPerS, bytesPerS) {
  const compute = cost.flops / flopsPerS;
  const memory = (cost.weight_bytes + cost.cache_bytes) / bytesPerS;
  return {
    compute_s: compute,
    memory_s: memory,
    time_s: Math.max(compute, memory),
    bound: compute > memory ? "compute" : "memory",
    intensity: cost.flops / (cost.weight_bytes + cost.cache_bytes),
  };
}

export function crossoverBatch(model, context, format, cacheFormat, flopsPerS, bytesPerS) {
  const one = decodeCost(model, 1, context, format, cacheFormat);
  const perRequest = one.flops / flopsPerS - one.cache_bytes / bytesPerS;
  if (model.experts || perRequest <= 0) return null;
  return one.weight_bytes / bytesPerS / perRequest;
}

export function capacity(memoryBytes, weights, requestBytes, gpus, utilization) {
  const budget = gpus * memoryBytes * utilization;
  const cache = budget - weights;
  const requests = Math.floor(Math.max(0, cache / requestBytes));
  return { budget_bytes: budget, cache_bytes: cache, num_requests: requests, fits: requests >= 1 };
}

export function fewestGpus(memoryBytes, weights, requestBytes, utilization) {
  return Math.max(1, Math.ceil((weights + requestBytes) / (memoryBytes * utilization)));
}

// The whole page from its inputs; `tables` is calculator.json.
export function compute(tables, input) {
  const model = tables.models[input.model];
  const device = tables.devices[input.device];
  const format = tables.weight_formats[input.weights];
  const context = input.prompt + input.output;
  const flopsPerS = device.peak_flops_per_s[input.operands] * input.efficiency * input.gpus;
  const bytesPerS = device.bandwidth_bytes_per_s * input.efficiency * input.gpus;
  const weights = weightBytes(model, format);
  const requestBytes = cacheBytes(model, context, 1, input.cache, tables.block_size);
  const fresh = input.prompt - input.cached;
  const prefill = prefillCost(model, fresh, input.cached, format, input.cache);
  const decode = decodeCost(model, input.batch, context, format, input.cache);
  const prefillTime = stepTime(prefill, flopsPerS, bytesPerS);
  const decodeTime = stepTime(decode, flopsPerS, bytesPerS);
  return {
    context,
    weights,
    bytes_per_token: bytesPerToken(model, input.cache),
    request_bytes: requestBytes,
    batch_bytes: input.batch * requestBytes,
    capacity: capacity(
      device.memory_bytes,
      weights.total_bytes,
      requestBytes,
      input.gpus,
      input.utilization,
    ),
    fewest_gpus: fewestGpus(
      device.memory_bytes,
      weights.total_bytes,
      requestBytes,
      input.utilization,
    ),
    prefill: { ...prefill, ...prefillTime },
    decode: { ...decode, ...decodeTime },
    tokens_per_s: input.batch / decodeTime.time_s,
    ridge: flopsPerS / bytesPerS,
    ridge_batch: ((flopsPerS / bytesPerS) * format.bits_per_element) / 8 / 2,
    crossover_batch: crossoverBatch(model, context, format, input.cache, flopsPerS, bytesPerS),
    flops_per_s: flopsPerS,
    bytes_per_s: bytesPerS,
  };
}

// What is wrong with the inputs, by field; the words are the page's.
export function faults(tables, input) {
  const found = {};
  const model = tables.models[input.model];
  for (const name of ["prompt", "output", "batch", "gpus"]) {
    if (!Number.isInteger(input[name]) || input[name] < 1) found[name] = "count";
  }
  if (!Number.isInteger(input.cached) || input.cached < 0 || input.cached >= input.prompt) {
    found.cached = "cached";
  }
  for (const name of ["utilization", "efficiency"]) {
    if (!(input[name] > 0 && input[name] <= 1)) found[name] = "share";
  }
  if (!found.prompt && !found.output && input.prompt + input.output > model.max_context) {
    found.prompt = "context";
  }
  if (!Object.hasOwn(tables.devices[input.device].peak_flops_per_s, input.operands)) {
    found.operands = "operands";
  }
  return found;
}
