// Small helpers for elements and lines. Text always goes in as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function shape(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// A line through [time, value] points in a box of 100 x 20, newest at the right; top is the value that fills it.
export function line(points, now, span, top) {
  if (!points.length) return "";
  const scale = top > 0 ? 18 / top : 0;
  return points
    .map(([at, value], i) => `${i ? "L" : "M"}${(100 * (1 - (now - at) / span)).toFixed(1)} ${(19 - value * scale).toFixed(1)}`)
    .join("");
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 2 });
}

export function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${(seconds / 3600).toFixed(1)} h ago`;
}
