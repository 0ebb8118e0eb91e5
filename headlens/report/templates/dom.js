/* The data of the page, elements whose text is never read as markup, and numbers as the tables print them. */
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const heads = data.layers * data.heads;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/* make("p", {class: "cap"}, "words", another) */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function nameOf(place) {
  return `L${Math.floor(place / data.heads)}H${place % data.heads}`;
}

/* Place of the head that an address names; null where it names none. */
function placeOf(hash) {
  const [, layer, head] = /^#L(\d+)H(\d+)$/.exec(hash) ?? [];
  return layer !== undefined && +layer < data.layers && +head < data.heads ? +layer * data.heads + +head : null;
}

function number(value, unit, digits = unit === "share" ? 3 : 2) {
  if (value === null || value === undefined) return "not defined";
  let text = Math.abs(value).toFixed(digits);
  const isZero = Number(text) === 0;
  if (unit === "share") {
    if (isZero && value > 0) return `<${(10 ** -digits).toFixed(digits).slice(1)}`;
    text = text.replace(/^0/, "");
  }
  return value >= 0 || isZero ? text : `−${text}`;
}

function interval(low, high, unit) {
  return low === null || low === undefined ? "" : `[${number(low, unit)}, ${number(high, unit)}]`;
}

function defined(values) {
  return values.filter((value) => value !== null);
}

/* 1 for the head with the highest value (of scores where low is telling, the lowest); equal ones share a rank. */
function rank(metric, place) {
  const value = metric.values[place];
  return 1 + defined(metric.values).filter((other) => (metric.end === "lowest" ? other < value : other > value)).length;
}

function counted(place, metric) {
  return `${rank(metric, place).toLocaleString("en")} of ${defined(metric.values).length.toLocaleString("en")}`;
}

const roleOf = new Map((data.roles ?? []).map((role) => [role.id, role]));

/* What a head holds, each role once: [{role, firm}], its label first. */
const rolesOf = (() => {
  const known = new Map();
  return (place) => {
    if (!known.has(place)) {
      const held = new Map();
      for (const one of data.held[place] ?? [])
        if (!held.has(one.role)) held.set(one.role, {role: roleOf.get(one.role), firm: one.firm});
      known.set(place, [...held.values()]);
    }
    return known.get(place);
  };
})();

function swatch(one) {
  const look = one ? `sw t-${one.role.kind}${one.firm ? "" : " tentative"}` : "sw none";
  return make("span", {class: look, "aria-hidden": "true"}, one ? one.role.letter : "·");
}

function capital(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}
