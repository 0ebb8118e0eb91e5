/* drawArcs(container, example): the words of a text, and an arc for each share of attention that one head pays.

   `example` is what Example.to_dict() gives: words, arcs [[from, to, share], ...], rest, unknown, direction, and in
   `shown` the places of the arcs that the text is shown for, beside which the others are dotted. Arcs above
   the line lead to earlier words, those below to later ones, a loop to the word itself; the dot is the word attended
   to, the width the share. Where the line does not fit, words stand one below the other, with the earlier ones to the
   side on which lines end. Called again on the same element it starts anew.
   drawArcs.examples(file, layer, head) lists the examples of a head as examples.json holds them. */
const drawArcs = (() => {
"use strict";
const SVG = "http://www.w3.org/2000/svg";
const PRINTED = 640;  // px that a sheet of A4 or letter has for certain
const HIGHEST = 80, LOOP = 20, ROOM = 8;  // px
const CSS = `
.arcs{position:relative;max-width:100%}
.arcs-stage{position:relative;width:max-content;max-width:100%}
.arcs-stage svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible;pointer-events:none}
.arcs-words{width:max-content;white-space:nowrap;line-height:22px;font-size:15px}
.arcs-word{display:inline-block;margin:0 4px;padding:0 2px;border-radius:2px;cursor:default}
.arcs-word:focus-visible{outline:2px solid var(--link,#1f5fa8);outline-offset:1px}
.arcs-unknown{text-decoration:underline dotted;text-underline-offset:3px}
.arcs-off{color:var(--ink3,#6b7177)}
.arcs-down .arcs-stage{width:100%;max-width:420px}
.arcs-down .arcs-words{width:max-content;max-width:56%;margin:0 auto;white-space:normal;text-align:center}
.arcs-down .arcs-word{display:block;width:fit-content;max-width:100%;margin:0 auto 2px;overflow-wrap:anywhere}
.arcs-arc{fill:none;stroke:var(--link,#1f5fa8);stroke-linecap:round}
.arcs-dot{fill:var(--mark,var(--hl-mark,#b3261e))}
.arcs-beside .arcs-arc{stroke:var(--ink3,#6b7177);stroke-dasharray:2 4}
.arcs-beside .arcs-dot{fill:var(--ink3,#6b7177)}
.arcs-faded{opacity:.1}
.arcs-said{margin:6px 0 0;min-height:3em;font-size:12px;line-height:1.5;max-width:60ch;color:var(--ink2,var(--hl-ink2,#555b61))}
.arcs-list{position:absolute;width:1px;height:1px;margin:0;padding:0;overflow:hidden;clip-path:inset(50%)}
@media (forced-colors:active){.arcs-arc{stroke:LinkText}.arcs-dot{fill:CanvasText}.arcs-off{color:GrayText}}
@media print{.arcs{break-inside:avoid}.arcs-said{min-height:0}.arcs-stage svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
`;
const running = new WeakMap();  // what is to be stopped when an element is drawn on again

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function style() {
  if (document.getElementById("arcs-style")) return;
  const sheet = make("style", "", CSS);
  sheet.id = "arcs-style";
  document.head.append(sheet);
}

function two(share) {
  return share < 0.995 ? share.toFixed(2).replace(/^0/, "") : "1.00";
}

function largestFirst(arcs) {
  return [...arcs].sort((one, other) => other[2] - one[2] || one[1] - other[1]);
}

function listOf(example) {
  const list = make("ul", "arcs-list");
  for (const [from, to, share] of example.arcs)
    list.append(make("li", "", `${example.words[from]} → ${example.words[to]} ${two(share)}`));
  if (!example.arcs.length) list.append(make("li", "", "No word gets a share of .10 from another."));
  return list;
}

function sayAll(example) {
  const mean = example.rest.reduce((sum, share) => sum + share, 0) / example.words.length;
  const said = [`To special tokens, not drawn: ${two(mean)} on average.`];
  if (example.unknown.length)
    said.push(`Dotted: ${example.unknown.length} of ${example.words.length} words unknown to the model.`);
  return said.join(" ");
}

function sayOne(example, word) {
  const paid = largestFirst(example.arcs.filter((arc) => arc[0] === word));
  const said = paid.map((arc) => `\u2068${example.words[arc[1]]}\u2069 ${two(arc[2])}`);
  if (example.rest[word] >= 0.1) said.push(`special tokens ${two(example.rest[word])}`);
  const name = `\u2068${example.words[word]}\u2069`;
  return said.length ? `${name} → ${said.join(", ")}` : `${name}: no word gets a share of .10`;
}

function arc(svg, [from, to, share, isBeside], path, x, y) {
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("class", "arcs-arc");
  line.setAttribute("d", path);
  line.setAttribute("stroke-width", (0.8 + 4.5 * share).toFixed(2));
  line.setAttribute("stroke-opacity", (0.4 + 0.5 * share).toFixed(2));
  const dot = document.createElementNS(SVG, "circle");
  dot.setAttribute("class", "arcs-dot");
  dot.setAttribute("cx", x);
  dot.setAttribute("cy", y);
  dot.setAttribute("r", (1.8 + 1.2 * share).toFixed(2));
  const group = document.createElementNS(SVG, "g");
  group.dataset.from = from;
  group.dataset.to = to;
  group.classList.toggle("arcs-beside", isBeside);
  group.append(line, dot);
  svg.append(group);
}

function height(distance) {
  return Math.min(HIGHEST, 6 + 0.36 * distance);
}

/* A cubic curve rises to three quarters of its control points. */
function alongLine(stage, svg, words, spans, arcs) {
  const left = stage.getBoundingClientRect().left;
  const middle = spans.map((span) => { const box = span.getBoundingClientRect(); return box.left + box.width / 2 - left; });
  const rise = (kept) => kept.reduce((most, [from, to]) =>
    Math.max(most, from === to ? LOOP : height(Math.abs(middle[to] - middle[from])) + ROOM), ROOM);
  const above = rise(arcs.filter(([from, to]) => to <= from)), below = rise(arcs.filter(([from, to]) => to > from));
  stage.style.padding = `${above}px 0 ${below}px`;
  const top = above, bottom = above + words.getBoundingClientRect().height;
  for (const one of arcs) {
    const [from, to] = one;
    if (from === to) {
      const x = middle[from];
      arc(svg, one, `M${x - 4} ${top}C${x - 13} ${top - LOOP} ${x + 13} ${top - LOOP} ${x + 4} ${top}`, x + 4, top);
      continue;
    }
    const side = Math.sign(middle[to] - middle[from]) || 1;
    const start = middle[from] + 3 * side, end = middle[to] - 3 * side;
    const y = to < from ? top : bottom, control = y + (to < from ? -1 : 1) * height(Math.abs(end - start)) / 0.75;
    arc(svg, one, `M${start} ${y}C${start} ${control} ${end} ${control} ${end} ${y}`, end, y);
  }
}

function besideColumn(stage, svg, words, spans, arcs, isRightToLeft) {
  stage.style.padding = "0";
  const frame = stage.getBoundingClientRect(), column = words.getBoundingClientRect();
  const middle = spans.map((span) => { const box = span.getBoundingClientRect(); return box.top + box.height / 2 - frame.top; });
  const space = Math.max(12, (frame.width - column.width) / 2 - 12);
  for (const one of arcs) {
    const [from, to] = one;
    const out = (to <= from) === isRightToLeft ? -1 : 1;
    const x = out > 0 ? column.right - frame.left + 6 : column.left - frame.left - 6;
    const side = Math.sign(middle[to] - middle[from]) || 1;
    const start = middle[from] + (from === to ? -5 : 3 * side), end = middle[to] - (from === to ? -5 : 3 * side);
    const control = x + out * Math.min(space, from === to ? 12 : 8 + 0.4 * Math.abs(end - start)) / 0.75;
    arc(svg, one, `M${x} ${start}C${control} ${start} ${control} ${end} ${x} ${end}`, x, end);
  }
}

/* With a fourth entry: whether others are what the text is shown for. Those come last, on top. */
function toldApart(example) {
  const shown = new Set(example.shown);
  const arcs = example.arcs.map((one, place) => [...one, shown.size > 0 && !shown.has(place)]);
  return arcs.sort((one, other) => other[3] - one[3]);
}

function wordOf(example, place) {
  const span = make("span", "arcs-word", example.words[place]);
  if (example.unknown.includes(place)) span.classList.add("arcs-unknown");
  span.tabIndex = place === 0 ? 0 : -1;
  span.dataset.word = place;
  return span;
}

function draw(container, example) {
  running.get(container)?.abort();
  const stop = new AbortController(), options = {signal: stop.signal};
  running.set(container, stop);
  style();
  const isRightToLeft = example.direction === "rtl";
  const root = make("div", "arcs"), stage = make("div", "arcs-stage"), words = make("div", "arcs-words");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("aria-hidden", "true");
  words.dir = isRightToLeft ? "rtl" : "ltr";
  const spans = example.words.map((_, place) => wordOf(example, place));
  for (const span of spans) words.append(span, " ");  // spaces for those who copy
  const said = make("p", "arcs-said", sayAll(example));
  said.setAttribute("aria-live", "polite");
  said.dir = "auto";
  stage.append(svg, words);
  root.append(stage, said, listOf(example));
  container.replaceChildren(root);

  const arcs = toldApart(example);
  let single = null, width = -1;
  const singleOut = (word) => {
    single = word;
    const targets = new Set(example.arcs.filter((one) => one[0] === word).map((one) => one[1]));
    for (const group of svg.children) group.classList.toggle("arcs-faded", word !== null && +group.dataset.from !== word);
    spans.forEach((span, place) => span.classList.toggle("arcs-off", word !== null && place !== word && !targets.has(place)));
    said.textContent = word === null ? sayAll(example) : sayOne(example, word);
  };
  const redraw = (room) => {
    if (!room) return;  // not shown
    svg.replaceChildren();
    root.classList.remove("arcs-down");
    stage.style.padding = "0";
    const isDown = words.getBoundingClientRect().width > room;
    root.classList.toggle("arcs-down", isDown);
    if (isDown) besideColumn(stage, svg, words, spans, arcs, isRightToLeft);
    else alongLine(stage, svg, words, spans, arcs);
    singleOut(single);
  };
  const focused = () => { const place = spans.indexOf(document.activeElement); return place < 0 ? null : place; };
  const move = (event) => {
    const isDown = root.classList.contains("arcs-down"), place = focused();
    const steps = {ArrowDown: 1, ArrowUp: -1, ArrowRight: isRightToLeft && !isDown ? -1 : 1};
    steps.ArrowLeft = -steps.ArrowRight;
    if (event.key === "Escape" && single !== null) {
      event.stopPropagation();
      singleOut(null);
    } else if (event.key in steps && place !== null) {
      event.preventDefault();
      spans[Math.min(spans.length - 1, Math.max(0, place + steps[event.key]))].focus();
    }
  };
  words.addEventListener("keydown", move, options);
  words.addEventListener("focusin", (event) => {
    const place = spans.indexOf(event.target);
    if (place < 0) return;
    for (const span of spans) span.tabIndex = span === event.target ? 0 : -1;
    singleOut(place);
  }, options);
  words.addEventListener("focusout", () => singleOut(null), options);
  words.addEventListener("mouseover", (event) => { const place = spans.indexOf(event.target); if (place >= 0) singleOut(place); }, options);
  words.addEventListener("mouseleave", () => singleOut(focused()), options);
  const observer = new ResizeObserver(() => {
    if (!container.isConnected) return stop.abort();
    if (container.clientWidth === width) return;
    width = container.clientWidth;
    redraw(width);
  });
  stop.signal.addEventListener("abort", () => observer.disconnect());
  observer.observe(container);
  window.addEventListener("beforeprint", () => redraw(Math.min(container.clientWidth, PRINTED)), options);
  window.addEventListener("afterprint", () => redraw(container.clientWidth), options);
  document.fonts?.ready.then(() => { if (!stop.signal.aborted) redraw(container.clientWidth); });
  width = container.clientWidth;
  redraw(width);
}

draw.examples = (file, layer, head) => (file.heads[`${layer}.${head}`] ?? []).map((one) => {
  const {id, ...text} = file.texts[one.text], arcs = [];
  for (let place = 0; place < one.arcs.length; place += 3)
    arcs.push([one.arcs[place], one.arcs[place + 1], one.arcs[place + 2] / 1000]);
  return {layer, head, text_id: id, ...text, arcs, rest: one.rest.map((share) => share / 1000),
    strength: one.strength / 1000, why: one.why, shown: one.shown ?? [], asked: one.asked ?? 0, right: one.right ?? 0};
});
return draw;
})();
