// Helpers for elements and sparklines. Text is always set as text, never as markup.

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

// Sets changed text only, so that screen readers do not repeat it and a text selection survives.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Reconciles the children of an element with these keys, in order; kept children keep the focus.
export function keyed(parent, keys, make) {
  const had = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = null;
  for (const key of keys) {
    let child = had.get(key);
    had.delete(key);
    if (!child) {
      child = make(key);
      child.dataset.key = key;
    }
    const next = at ? at.nextElementSibling : parent.firstElementChild;
    if (child !== next) parent.insertBefore(child, next);
    at = child;
  }
  for (const child of had.values()) child.remove();
  return [...parent.children];
}

// SVG path through [time, value] points in a 100 x 20 box, newest at the right; top is the value at full height.
export function line(points, now, span, top) {
  if (!points.length) return "";
  const scale = top > 0 ? 18 / top : 0;
  return points
    .map(([at, value], i) => `${i ? "L" : "M"}${(100 * (1 - (now - at) / span)).toFixed(1)} ${(19 - value * scale).toFixed(1)}`)
    .join("");
}

// SVG path through [time, value] points in a 300 x 60 box that shows from..to; a missing value or time is a gap.
export function trace(points, from, to, top, gapS) {
  let path = "";
  let before = null;
  for (const [at, value] of points) {
    if (value === null || at < from) {
      before = null;
      continue;
    }
    const x = ((300 * (at - from)) / (to - from)).toFixed(1);
    const y = (58 - (56 * value) / top).toFixed(1);
    // A lone point is drawn as a short line.
    path += before === null || at - before > gapS ? `M${x} ${y}h1` : `L${x} ${y}`;
    before = at;
  }
  return path;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 2 });
}

function span(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const ago = (seconds) => (seconds < 1.5 ? "now" : `${span(seconds)} ago`);

export const lasting = (seconds) => (seconds < 1.5 ? "now" : `for ${span(seconds)}`);
