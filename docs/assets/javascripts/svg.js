// SVG elements, and numbers as a reader wants them.

const SPACE = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  for (const child of children) element.append(child);
  return element;
}

export function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children) element.append(child);
  return element;
}

const DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export const digits = (value) => DIGITS.format(value);

function scaled(value, units, smallest) {
  for (const [size, name] of units) if (Math.abs(value) >= size) return `${digits(value / size)} ${name}`;
  return `${digits(value)} ${smallest}`;
}

const COUNTS = [[1e12, "T"], [1e9, "B"], [1e6, "M"]];
const BINARY = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
const DECIMAL = [[1e15, "PFLOP"], [1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"]];
const SECONDS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];

export const count = (value) => scaled(value, COUNTS, "").trim();
export const bytes = (value) => scaled(value, BINARY, "B");
export const flops = (value) => scaled(value, DECIMAL, "FLOP");
export const seconds = (value) => scaled(value, SECONDS, "s");
