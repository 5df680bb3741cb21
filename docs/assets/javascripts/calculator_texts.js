// The words of the calculator page: of each, the English and the Chinese.

const WORDS = {
  model: ["Model", "模型"],
  device: ["GPU", "GPU"],
  gpus: ["Number of GPUs (tensor parallel)", "GPU 数量（张量并行）"],
  prompt: ["Prompt tokens", "prompt token 数"],
  output: ["Output tokens", "输出 token 数"],
  batch: ["Requests at once", "并发请求数"],
  weights: ["Weights", "权重格式"],
  cache: ["KV cache", "KV Cache 格式"],
  operands: ["Operands of the products", "矩阵乘的操作数类型"],
  cached: ["Of the prompt, in the prefix cache", "prompt 中命中前缀缓存的 token"],
  utilization: ["Share of memory to use", "显存使用比例"],
  efficiency: ["Share of the peaks that is reached", "实际达到峰值的比例"],
  memory: ["Memory", "显存"],
  time: ["Time", "时间"],
  roofline: ["Roofline", "Roofline"],
  weightBytes: ["weights", "权重"],
  kv: ["KV of the batch", "整个批次的 KV"],
  free: ["free", "空闲"],
  over: ["too much by", "超出"],
  budget: ["usable memory", "可用显存"],
  perToken: ["KV cache for a token", "每个 token 的 KV Cache"],
  perRequest: ["KV cache for a request", "每个请求的 KV Cache"],
  fit: ["Requests of this length that fit at once", "这种长度的请求最多同时容纳"],
  fewest: ["GPUs that hold the weights and one request", "放下权重和一个请求所需的 GPU 数"],
  ttft: ["Time to first token, floor", "TTFT 下限"],
  tpot: ["Time per output token, floor", "TPOT 下限"],
  throughput: ["Output tokens a second, ceiling", "输出吞吐上限（token/s）"],
  readWeights: ["reading weights", "读权重"],
  readCache: ["reading the KV cache", "读 KV Cache"],
  arithmetic: ["arithmetic", "计算"],
  prefill: ["prefill", "prefill"],
  decode: ["decode", "decode"],
  boundCompute: ["bound by arithmetic", "受算力限制"],
  boundMemory: ["bound by memory bandwidth", "受显存带宽限制"],
  crossover: ["Batch from which decode is bound by arithmetic", "decode 转为受算力限制的批大小"],
  never: ["none: each request brings its own KV bytes", "不存在：每个请求都带来自己的 KV 字节"],
  neverExperts: ["not stated: with experts the bytes depend on the batch", "不适用：MoE 读取的字节数随批大小变化"],
  intensity: ["FLOP per byte read", "算术强度（FLOP/字节）"],
  performance: ["FLOP/s", "FLOP/s"],
  overlap: [
    "A step takes the longer of the two bars: reading and arithmetic overlap.",
    "一步的时间取两条中较长的一条：访存与计算可以重叠。",
  ],
  fitsNot: ["The weights do not fit.", "权重放不下。"],
  batchFitsNot: ["The batch does not fit.", "整个批次放不下。"],
  parameters: ["parameters", "参数"],
  active: ["active", "激活"],
  reset: ["Reset", "恢复默认"],
};
const FAULTS = {
  count: ["a whole number of at least 1", "须为不小于 1 的整数"],
  cached: ["from 0 to one less than the prompt", "须在 0 到 prompt 长度减一之间"],
  share: ["above 0, at most 1", "须大于 0 且不超过 1"],
  context: ["prompt and output exceed the model's context", "prompt 与输出之和超过模型上下文"],
  operands: ["this GPU has no such peak", "该 GPU 没有这种操作数的峰值"],
};

const inLanguage = (pairs, language) =>
  Object.fromEntries(Object.entries(pairs).map(([name, [en, zh]]) => [name, language === "zh" ? zh : en]));

export const texts = (language) => ({ ...inLanguage(WORDS, language), fault: inLanguage(FAULTS, language) });
